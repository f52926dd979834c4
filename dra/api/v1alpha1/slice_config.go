// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 is what a DeviceClass or a ResourceClaim may say to cuslice besides its request: the opaque
// parameters of the driver.
package v1alpha1

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/json"
)

const (
	// DriverName is how ResourceSlices, DeviceClasses and opaque parameters name this driver.
	DriverName = "gpu.cuslice.dev"
	APIVersion = "cuslice.dev/v1alpha1"
	Kind       = "SliceConfig"
)

// Priority says how a slice waits for the GPU.
type Priority string

const (
	PriorityNormal  Priority = "Normal"
	PriorityLatency Priority = "Latency" // waits for no turn
)

// Injection says how the library comes into the processes of a container.
type Injection string

const (
	InjectionFile Injection = "File" // by a mounted /etc/ld.so.preload, which `env -i` and setuid keep
	InjectionEnv  Injection = "Env"  // by LD_PRELOAD, for images with a preload file of their own
	InjectionNone Injection = "None" // not at all: the limits are there, and the image sees to the library
)

// Oversubscription of memory. There is one policy; the field lets a manifest state it and be held to it.
type Oversubscription string

const OversubscriptionNever Oversubscription = "Never"

// Field is a field that a DeviceClass may leave to claims.
type Field string

const (
	FieldComputeLimit Field = "computeLimit"
	FieldPriority     Field = "priority"
	FieldInjection    Field = "injection"
)

// SliceConfig is the object in `opaque.parameters`. What is left out is not decided by it.
type SliceConfig struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Percent of the GPU's time that the slice never passes, 1 to 100.
	ComputeLimit     *uint32           `json:"computeLimit,omitempty"`
	Priority         *Priority         `json:"priority,omitempty"`
	Injection        *Injection        `json:"injection,omitempty"`
	Oversubscription *Oversubscription `json:"oversubscription,omitempty"`

	// Only in a DeviceClass: what its claims may set as they like. A claim may always lower computeLimit.
	ClaimsMaySet []Field `json:"claimsMaySet,omitempty"`
}

// Settings are what a share gets once all that was said about it is put together.
type Settings struct {
	ComputeLimit uint32
	Priority     Priority
	Injection    Injection
}

// Parse reads opaque parameters. A field that this version does not know, one given twice, or a value out of range
// is an error, since ignoring it would give a slice that its author did not ask for.
func Parse(parameters []byte) (*SliceConfig, error) {
	config := &SliceConfig{}
	unknown, err := json.UnmarshalStrict(parameters, config)
	if err != nil {
		return nil, fmt.Errorf("SliceConfig: %w", err)
	}
	if len(unknown) > 0 {
		return nil, fmt.Errorf("SliceConfig: %w", errors.Join(unknown...))
	}
	if err := config.validate(); err != nil {
		return nil, fmt.Errorf("SliceConfig: %w", err)
	}
	return config, nil
}

func (c *SliceConfig) validate() error {
	if c.APIVersion != APIVersion || c.Kind != Kind {
		return fmt.Errorf("apiVersion %q, kind %q: want %q, %q", c.APIVersion, c.Kind, APIVersion, Kind)
	}
	var wrong []error
	if c.ComputeLimit != nil && (*c.ComputeLimit < 1 || *c.ComputeLimit > 100) {
		wrong = append(wrong, fmt.Errorf("computeLimit %d: want a percentage from 1 to 100", *c.ComputeLimit))
	}
	wrong = append(wrong,
		oneOf("priority", c.Priority, PriorityNormal, PriorityLatency),
		oneOf("injection", c.Injection, InjectionFile, InjectionEnv, InjectionNone),
		oneOf("oversubscription", c.Oversubscription, OversubscriptionNever))
	for i := range c.ClaimsMaySet {
		wrong = append(wrong, oneOf("claimsMaySet", &c.ClaimsMaySet[i], FieldComputeLimit, FieldPriority, FieldInjection))
	}
	return errors.Join(wrong...)
}

func oneOf[T ~string](field string, value *T, allowed ...T) error {
	if value == nil || slices.Contains(allowed, *value) {
		return nil
	}
	words := make([]string, len(allowed))
	for i, word := range allowed {
		words[i] = string(word)
	}
	return fmt.Errorf("%s %q: want one of %s", field, *value, strings.Join(words, ", "))
}

// Resolve puts together what was said about one share: by its DeviceClass and by its claim, each in the order of the
// allocation, the later before the earlier. `compute` is the percentage that the share is guaranteed.
//
// Who may write claims is a tenant. So a claim decides nothing that could cost its neighbours or take it out of its
// slice, unless the class leaves that to it.
func Resolve(class, claim []*SliceConfig, compute uint32) (Settings, error) {
	settings := Settings{ComputeLimit: 100, Priority: PriorityNormal, Injection: InjectionFile}
	var left []Field
	for _, config := range class {
		set(&settings, config)
		left = append(left, config.ClaimsMaySet...)
	}

	forClaims := settings
	for _, config := range claim {
		if len(config.ClaimsMaySet) > 0 {
			return Settings{}, errors.New("claimsMaySet in a claim: only a DeviceClass may set it")
		}
		set(&settings, config)
	}
	var wrong []error
	if settings.ComputeLimit > forClaims.ComputeLimit && !slices.Contains(left, FieldComputeLimit) {
		wrong = append(wrong, notLeft(FieldComputeLimit, settings.ComputeLimit, forClaims.ComputeLimit))
	}
	if settings.Priority != forClaims.Priority && !slices.Contains(left, FieldPriority) {
		wrong = append(wrong, notLeft(FieldPriority, settings.Priority, forClaims.Priority))
	}
	if settings.Injection != forClaims.Injection && !slices.Contains(left, FieldInjection) {
		wrong = append(wrong, notLeft(FieldInjection, settings.Injection, forClaims.Injection))
	}
	if settings.ComputeLimit < compute {
		wrong = append(wrong, fmt.Errorf(
			"computeLimit %d is below the %d percent that the claim is guaranteed: raise it or request less compute",
			settings.ComputeLimit, compute))
	}
	if err := errors.Join(wrong...); err != nil {
		return Settings{}, err
	}
	return settings, nil
}

func set(settings *Settings, config *SliceConfig) {
	if config.ComputeLimit != nil {
		settings.ComputeLimit = *config.ComputeLimit
	}
	if config.Priority != nil {
		settings.Priority = *config.Priority
	}
	if config.Injection != nil {
		settings.Injection = *config.Injection
	}
}

func notLeft(field Field, wanted, decided any) error {
	return fmt.Errorf("%s %v in a claim: its DeviceClass decides %v; use another class, or have %q added to the claimsMaySet of this one",
		field, wanted, decided, field)
}
