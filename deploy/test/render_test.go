// SPDX-License-Identifier: Apache-2.0

// Package test renders the chart as Helm does, and holds what comes out to what an apiserver takes and means by it.
package test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/yaml"

	"cuslice.dev/dra/api/v1alpha1"
)

const (
	chartDirectory = "../helm/cuslice"
	manifests      = "../manifests/cuslice.yaml"
	namespace      = "cuslice-system"
)

var update = flag.Bool("update", false, "write deploy/manifests anew")

var strict = func() runtime.Decoder {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionv1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, resourcev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}()

// render answers the chart's documents, in the order of their files.
func render(values string) ([]string, error) {
	chart, err := loader.Load(chartDirectory)
	if err != nil {
		return nil, err
	}
	given := chartutil.Values{}
	if err := yaml.UnmarshalStrict([]byte(values), &given); err != nil {
		return nil, err
	}
	release := chartutil.ReleaseOptions{Name: "cuslice", Namespace: namespace, IsInstall: true, Revision: 1}
	all, err := chartutil.ToRenderValues(chart, given, release, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Engine{Strict: true}.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var documents []string
	for _, name := range names {
		documents = append(documents, split(files[name])...)
	}
	return documents, nil
}

func split(text string) []string {
	var documents []string
	for _, document := range strings.Split("\n"+text, "\n---") {
		if document = strings.TrimSpace(document); document != "" {
			documents = append(documents, document)
		}
	}
	return documents
}

func mustRender(t *testing.T, values string) []string {
	t.Helper()
	documents, err := render(values)
	if err != nil {
		t.Fatal(err)
	}
	return documents
}

// decode takes no field that the type of the object does not have, and none twice.
func decode(t *testing.T, documents []string) []runtime.Object {
	t.Helper()
	var objects []runtime.Object
	for _, document := range documents {
		object, _, err := strict.Decode([]byte(document), nil, nil)
		if err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		objects = append(objects, object)
	}
	return objects
}

func find[T runtime.Object](t *testing.T, objects []runtime.Object, name string) T {
	t.Helper()
	for _, object := range objects {
		if typed, ok := object.(T); ok && nameOf(t, object) == name {
			return typed
		}
	}
	t.Fatalf("no %T named %s", *new(T), name)
	panic("not reached")
}

func nameOf(t *testing.T, object runtime.Object) string {
	t.Helper()
	accessor, err := meta.Accessor(object)
	if err != nil {
		t.Fatal(err)
	}
	return accessor.GetName()
}

func TestEveryOptionRendersObjectsThatTheirTypesHave(t *testing.T) {
	for name, values := range map[string]string{
		"defaults":        ``,
		"labels":          `{commonLabels: {team: gpu}, serviceAccount: {name: other, annotations: {a: b}}}`,
		"no tenancy":      `{tenancy: {enabled: false}, deviceClasses: {dedicated: {enabled: false}, latency: {namespaces: All, maxPerDevice: {compute: 0}}}}`,
		"no class":        `{deviceClasses: {shared: {enabled: false}, dedicated: {enabled: false}, latency: {enabled: false}}}`,
		"bounds":          `{deviceClasses: {shared: {maxPerDevice: {memory: 20Gi, compute: 25}}}}`,
		"claims may set":  `{deviceClasses: {shared: {claimsMaySet: [computeLimit, priority, injection]}}}`,
		"classes renamed": `{deviceClasses: {shared: {name: slice, namespaces: Labelled}, latency: {name: fast}}, tenancy: {labelPrefix: gpu.example.com}}`,
	} {
		t.Run(name, func(t *testing.T) {
			seen := map[string]bool{}
			for _, object := range decode(t, mustRender(t, values)) {
				key := fmt.Sprintf("%T %s", object, nameOf(t, object))
				if seen[key] {
					t.Errorf("%s twice", key)
				}
				seen[key] = true
				accessor, _ := meta.Accessor(object)
				if accessor.GetLabels()["app.kubernetes.io/instance"] != "cuslice" {
					t.Errorf("%s: no label names the release", key)
				}
				if class, ok := object.(*resourcev1.DeviceClass); ok {
					for _, config := range class.Spec.Config {
						if _, err := v1alpha1.Parse(config.Opaque.Parameters.Raw); err != nil {
							t.Errorf("%s: %v", key, err)
						}
					}
				}
				if policy, ok := object.(*admissionv1.ValidatingAdmissionPolicy); ok && len(policy.Spec.Validations) == 0 {
					t.Errorf("%s: the apiserver takes no policy without validations", key)
				}
			}
		})
	}
}

func TestBadValuesAreRefusedByName(t *testing.T) {
	for values, want := range map[string]string{
		`{deviceClass: {}}`: "deviceClass",
		`{deviceClasses: {fast: {enabled: true, name: a, namespaces: All}}}`:                                    "fast",
		`{deviceClasses: {shared: {namespaces: Some}}}`:                                                         "namespaces",
		`{deviceClasses: {shared: {name: Shared}}}`:                                                             "name",
		`{deviceClasses: {shared: {maxPerDevice: {memory: 20GB}}}}`:                                             "memory",
		`{deviceClasses: {shared: {maxPerDevice: {memory: 20}}}}`:                                               "memory",
		`{deviceClasses: {shared: {maxPerDevice: {compute: 101}}}}`:                                             "compute",
		`{deviceClasses: {dedicated: {maxPerDevice: {compute: 50}}}}`:                                           "maxPerDevice",
		`{deviceClasses: {shared: {claimsMaySet: [memory]}}}`:                                                   "claimsMaySet",
		`{tenancy: {labelPrefix: ""}}`:                                                                          "labelPrefix",
		`{tenancy: {enabled: "yes"}}`:                                                                           "enabled",
		`{deviceClasses: {shared: {name: latency.gpu.cuslice.dev}}}`:                                            "a name of its own",
		`{tenancy: {enabled: false}}`:                                                                           "tenancy.enabled",
		`{tenancy: {enabled: false}, deviceClasses: {latency: {namespaces: All}, dedicated: {enabled: false}}}`: "maxPerDevice has a bound",
		`{tenancy: {enabled: false}, deviceClasses: {latency: {enabled: false}, dedicated: {namespaces: All}}}`: "dedicated needs tenancy",
	} {
		if _, err := render(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v: want one with %q", values, err, want)
		}
	}
}

func TestThePlainManifestsAreTheRenderedDefaults(t *testing.T) {
	text := "# SPDX-License-Identifier: Apache-2.0\n#\n# The chart's defaults in the namespace " + namespace +
		"; written by `go test -run PlainManifests . -update` in deploy/test.\n"
	for _, document := range mustRender(t, "") {
		text += "---\n" + document + "\n"
	}
	if *update {
		if err := os.WriteFile(manifests, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(manifests)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, []byte(text)) {
		t.Errorf("%s is not what the chart renders: run `go test -run PlainManifests . -update`", filepath.Base(manifests))
	}
}
