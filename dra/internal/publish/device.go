// SPDX-License-Identifier: Apache-2.0

// Package publish says to the scheduler what a node has.
package publish

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

const (
	CapacityMemory  = "memory"
	CapacityCompute = "compute" // percent of the GPU's time

	// The scheduler rounds a request up to the next step, so a coarse one would take from its author what it adds.
	memoryStep = 128 << 20
	// A claim that names no capacity, as all do that come by an extended resource, gets an eighth: so many fit.
	defaultParts = 8
)

// GPU is one that the broker makes slices of.
type GPU struct {
	UUID            string // as NVML writes it
	Index           int64
	ProductName     string
	UsableBytes     int64 // what is for slices: less than the board has
	Multiprocessors int64 // 0: not known
	DriverVersion   string
}

var uuidForm = regexp.MustCompile(`^GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)

// Device is the GPU as one device that many claims may share. Its name is the UUID's: an index may be another GPU's after
// a boot, and allocations outlive that.
func Device(gpu GPU) (resourceapi.Device, error) {
	if !uuidForm.MatchString(gpu.UUID) {
		return resourceapi.Device{}, fmt.Errorf("GPU %d: %q is no UUID of a GPU", gpu.Index, gpu.UUID)
	}
	steps := gpu.UsableBytes / memoryStep
	// The apiserver wants room for one step over the least.
	if steps < 2 {
		return resourceapi.Device{}, fmt.Errorf("GPU %d: %d bytes for slices are too few to share", gpu.Index, gpu.UsableBytes)
	}
	shared := true
	device := resourceapi.Device{
		Name:                     strings.ToLower(gpu.UUID),
		AllowMultipleAllocations: &shared,
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type":  text("gpu"),
			"uuid":  text(gpu.UUID),
			"index": {IntValue: &gpu.Index},
		},
		// No policy and no request would mean all of it, so each has one.
		Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{
			CapacityMemory:  ranged(memoryStep, steps, max(steps/defaultParts, 1), resource.BinarySI),
			CapacityCompute: ranged(1, 100, 100/defaultParts, resource.DecimalSI),
		},
	}
	if gpu.ProductName != "" {
		device.Attributes["productName"] = text(gpu.ProductName)
	}
	if gpu.Multiprocessors > 0 {
		device.Attributes["multiprocessors"] = resourceapi.DeviceAttribute{IntValue: &gpu.Multiprocessors}
	}
	if version, ok := semanticVersion(gpu.DriverVersion); ok {
		device.Attributes["driverVersion"] = resourceapi.DeviceAttribute{VersionValue: &version}
	}
	return device, nil
}

// ranged is a capacity of `steps` steps, which are requested in whole steps, one at least.
func ranged(step, steps, defaultSteps int64, format resource.Format) resourceapi.DeviceCapacity {
	quantity := func(count int64) *resource.Quantity { return resource.NewQuantity(count*step, format) }
	return resourceapi.DeviceCapacity{
		Value: *quantity(steps),
		RequestPolicy: &resourceapi.CapacityRequestPolicy{
			Default:    quantity(defaultSteps),
			ValidRange: &resourceapi.CapacityRequestPolicyRange{Min: quantity(1), Step: quantity(1), Max: quantity(steps)},
		},
	}
}

// text cuts at what an attribute may hold; selectors on the rest are not worth the loss of the whole device.
func text(value string) resourceapi.DeviceAttribute {
	if len(value) > resourceapi.DeviceAttributeMaxValueLength {
		value = strings.ToValidUTF8(value[:resourceapi.DeviceAttributeMaxValueLength], "")
	}
	return resourceapi.DeviceAttribute{StringValue: &value}
}

// semanticVersion of a driver's: "580.105.08" has a zero that semantic versions forbid, "535.54" a part too few.
func semanticVersion(version string) (string, bool) {
	parts := strings.Split(version, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return "", false
	}
	numbers := [3]uint64{}
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, 32)
		if err != nil {
			return "", false
		}
		numbers[i] = number
	}
	return fmt.Sprintf("%d.%d.%d", numbers[0], numbers[1], numbers[2]), true
}
