// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/dynamic-resource-allocation/cel"

	"cuslice.dev/dra/api/v1alpha1"
)

const driver = v1alpha1.DriverName

// h100 has of a published GPU what selectors look at.
func h100() cel.Device {
	shared := true
	gpu, product := "gpu", "NVIDIA H100 80GB HBM3"
	return cel.Device{
		Driver:                   driver,
		AllowMultipleAllocations: &shared,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			"type": {StringValue: &gpu}, "productName": {StringValue: &product},
		},
		Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{
			"memory": {Value: resource.MustParse("80640Mi")}, "compute": {Value: resource.MustParse("100")},
		},
	}
}

// matches compiles the expression as the scheduler does; one that fails on a device matches nothing.
func matches(t *testing.T, selectors []resourcev1.DeviceSelector, device cel.Device) bool {
	t.Helper()
	for _, selector := range selectors {
		compiled := cel.GetCompiler(cel.Features{EnableConsumableCapacity: true}).CompileCELExpression(selector.CEL.Expression, cel.Options{})
		if compiled.Error != nil {
			t.Fatal(compiled.Error)
		}
		ok, _, err := compiled.DeviceMatches(context.Background(), device)
		if err != nil || !ok {
			return false
		}
	}
	return true
}

func TestEveryClassIsOfShareableGpusOfThisDriver(t *testing.T) {
	count := 0
	for _, object := range decode(t, mustRender(t, "")) {
		class, ok := object.(*resourcev1.DeviceClass)
		if !ok {
			continue
		}
		count++
		if !matches(t, class.Spec.Selectors, h100()) {
			t.Errorf("%s: does not match a GPU", class.Name)
		}
		for name, change := range map[string]func(*cel.Device){
			"another driver's":                   func(d *cel.Device) { d.Driver = "gpu.example.com" },
			"one whose sharing the server drops": func(d *cel.Device) { d.AllowMultipleAllocations = nil },
			"one without a type":                 func(d *cel.Device) { delete(d.Attributes, "type") },
		} {
			device := h100()
			change(&device)
			if matches(t, class.Spec.Selectors, device) {
				t.Errorf("%s: matches %s", class.Name, name)
			}
		}
	}
	if count != 3 {
		t.Errorf("%d classes: want shared, dedicated and latency", count)
	}
}

// choice is what a request may be met with.
type choice struct {
	class     string
	selectors []resourcev1.DeviceSelector
	capacity  *resourcev1.CapacityRequirements
}

func choices(request resourcev1.DeviceRequest) []choice {
	if exactly := request.Exactly; exactly != nil {
		return []choice{{exactly.DeviceClassName, exactly.Selectors, exactly.Capacity}}
	}
	var all []choice
	for _, sub := range request.FirstAvailable {
		all = append(all, choice{sub.DeviceClassName, sub.Selectors, sub.Capacity})
	}
	return all
}

func configs(t *testing.T, opaque *resourcev1.OpaqueDeviceConfiguration) *v1alpha1.SliceConfig {
	t.Helper()
	if opaque == nil || opaque.Driver != driver {
		t.Fatalf("configuration %v: want one for %s", opaque, driver)
	}
	config, err := v1alpha1.Parse(opaque.Parameters.Raw)
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestEveryExampleIsTakenAndFits(t *testing.T) {
	chart := decode(t, mustRender(t, ""))
	policy := find[*admissionv1.ValidatingAdmissionPolicy](t, chart, "tenancy.gpu.cuslice.dev")
	files, err := filepath.Glob("../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects := decode(t, split(string(text)))
			labels := map[string]map[string]string{}
			templates := map[string]bool{}
			for _, object := range objects {
				switch object := object.(type) {
				case *corev1.Namespace:
					labels[object.Name] = object.Labels
				case *resourcev1.ResourceClaimTemplate:
					templates[object.Namespace+"/"+object.Name] = true
				}
			}
			for _, object := range objects {
				switch object := object.(type) {
				case *corev1.Namespace:
				case *corev1.ResourceQuota:
					for name := range object.Spec.Hard {
						class, ours := strings.CutSuffix(string(name), ".deviceclass.resource.k8s.io/devices")
						if !ours {
							t.Errorf("%s counts no devices", name)
						}
						find[*resourcev1.DeviceClass](t, chart, class)
					}
				case *corev1.Pod:
					for _, claim := range object.Spec.ResourceClaims {
						if !templates[object.Namespace+"/"+*claim.ResourceClaimTemplateName] {
							t.Errorf("pod %s: no template %s beside it", object.Name, *claim.ResourceClaimTemplateName)
						}
					}
				case *resourcev1.ResourceClaimTemplate:
					expect(t, denials(t, policy, ask{operation: admission.Create, kind: "ResourceClaimTemplate",
						resource: "resourceclaimtemplates", object: object, labels: labels[object.Namespace]}), "")
					checkClaim(t, chart, object.Spec.Spec)
				default:
					t.Errorf("%T is not checked by this test", object)
				}
			}
		})
	}
}

func checkClaim(t *testing.T, chart []runtime.Object, spec resourcev1.ResourceClaimSpec) {
	t.Helper()
	for _, request := range spec.Devices.Requests {
		for _, choice := range choices(request) {
			class := find[*resourcev1.DeviceClass](t, chart, choice.class)
			if !matches(t, append(slices.Clone(class.Spec.Selectors), choice.selectors...), h100()) {
				t.Errorf("request %s: no GPU matches it", request.Name)
			}
			for name, wanted := range choice.capacity.Requests {
				capacity, ok := h100().Capacity[name]
				if !ok || wanted.Cmp(capacity.Value) > 0 {
					t.Errorf("request %s: %s %s is more than a GPU has", request.Name, name, wanted.String())
				}
			}
			var ofClass, ofClaim []*v1alpha1.SliceConfig
			for _, config := range class.Spec.Config {
				ofClass = append(ofClass, configs(t, config.Opaque))
			}
			for _, config := range spec.Devices.Config {
				ofClaim = append(ofClaim, configs(t, config.Opaque))
			}
			compute := choice.capacity.Requests["compute"]
			if _, err := v1alpha1.Resolve(ofClass, ofClaim, uint32(compute.Value())); err != nil {
				t.Errorf("request %s: %v", request.Name, err)
			}
		}
	}
}
