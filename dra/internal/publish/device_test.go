// SPDX-License-Identifier: Apache-2.0

package publish

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const gib = 1 << 30

func h100() GPU {
	return GPU{
		UUID: "GPU-18cf7b1c-0000-0000-0000-000000000001", Index: 3, ProductName: "NVIDIA H100 80GB HBM3",
		UsableBytes: 84982890496 + 12345, Multiprocessors: 132, DriverVersion: "580.105.08",
	}
}

func mustDevice(t *testing.T, gpu GPU) resourceapi.Device {
	t.Helper()
	device, err := Device(gpu)
	if err != nil {
		t.Fatal(err)
	}
	return device
}

func TestDeviceOfAGpu(t *testing.T) {
	device := mustDevice(t, h100())
	if device.Name != "gpu-18cf7b1c-0000-0000-0000-000000000001" || !*device.AllowMultipleAllocations {
		t.Errorf("%+v: want a shareable device named by its UUID", device)
	}
	for name, want := range map[resourceapi.QualifiedName]string{
		"type": "gpu", "uuid": h100().UUID, "productName": "NVIDIA H100 80GB HBM3",
	} {
		if got := device.Attributes[name].StringValue; got == nil || *got != want {
			t.Errorf("attribute %s: want %s", name, want)
		}
	}
	if *device.Attributes["index"].IntValue != 3 || *device.Attributes["multiprocessors"].IntValue != 132 {
		t.Errorf("attributes %+v: want index 3 and 132 multiprocessors", device.Attributes)
	}
	if got := device.Capacity[CapacityMemory].Value; got.Value() > h100().UsableBytes || got.Value() <= h100().UsableBytes-memoryStep {
		t.Errorf("memory %s: want whole steps, all that fit and no more", got.String())
	}
}

// The apiserver's rules for a policy; one that breaks them has the whole ResourceSlice refused.
func TestEveryCapacityHasAPolicyThatTheApiserverTakes(t *testing.T) {
	for _, usable := range []int64{2 * memoryStep, 3*memoryStep + 1, 4 * gib, h100().UsableBytes, 192 * gib} {
		gpu := h100()
		gpu.UsableBytes = usable
		for name, capacity := range mustDevice(t, gpu).Capacity {
			policy := capacity.RequestPolicy
			value, least, most := capacity.Value.Value(), policy.ValidRange.Min.Value(), policy.ValidRange.Max.Value()
			step, given := policy.ValidRange.Step.Value(), policy.Default.Value()
			if least < 1 || least > given || given > most || most > value || least+step > value ||
				(given-least)%step != 0 || (most-least)%step != 0 {
				t.Errorf("%s of a GPU with %d bytes: min %d, step %d, default %d, max %d, value %d", name, usable, least, step, given, most, value)
			}
		}
	}
}

func TestEightDefaultsFit(t *testing.T) {
	for name, capacity := range mustDevice(t, h100()).Capacity {
		given, value := capacity.RequestPolicy.Default.Value(), capacity.Value.Value()
		if 8*given > value || 9*given <= value {
			t.Errorf("%s: default %d of %d: want eight to fit and no ninth", name, given, value)
		}
	}
}

func TestARoundRequestIsNotRoundedUp(t *testing.T) {
	memory := mustDevice(t, h100()).Capacity[CapacityMemory].RequestPolicy.ValidRange
	request := resource.MustParse("10Gi")
	if (request.Value()-memory.Min.Value())%memory.Step.Value() != 0 {
		t.Errorf("10Gi is off the grid of min %s, step %s", memory.Min, memory.Step)
	}
}

func TestDriverVersion(t *testing.T) {
	for version, want := range map[string]string{
		"580.105.08": "580.105.8", "535.54": "535.54.0", "": "", "580": "", "1.2.3.4": "", "580.x.1": "", "580.-1.1": "",
	} {
		gpu := h100()
		gpu.DriverVersion = version
		got := ""
		if attribute, ok := mustDevice(t, gpu).Attributes["driverVersion"]; ok {
			got = *attribute.VersionValue
		}
		if got != want {
			t.Errorf("driver %q: version %q: want %q", version, got, want)
		}
	}
}

func TestALongNameIsCut(t *testing.T) {
	gpu := h100()
	gpu.ProductName = strings.Repeat("x", 63) + "é"
	if got := *mustDevice(t, gpu).Attributes["productName"].StringValue; got != strings.Repeat("x", 63) {
		t.Errorf("name %q: want it cut before the letter that does not fit", got)
	}
}

func TestAGpuThatCannotBeSharedIsRefused(t *testing.T) {
	gpu := h100()
	gpu.UsableBytes = 2*memoryStep - 1
	if _, err := Device(gpu); err == nil || !strings.Contains(err.Error(), "too few") {
		t.Errorf("error %v: want one about the memory", err)
	}
	gpu = h100()
	gpu.UUID = "3"
	if _, err := Device(gpu); err == nil || !strings.Contains(err.Error(), "UUID") {
		t.Errorf("error %v: want one about the UUID", err)
	}
}
