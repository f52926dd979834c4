// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
)

func object(fields string) string {
	return `{"apiVersion": "cuslice.dev/v1alpha1", "kind": "SliceConfig"` + fields + `}`
}

func mustParse(t *testing.T, fields string) *SliceConfig {
	t.Helper()
	config, err := Parse([]byte(object(fields)))
	if err != nil {
		t.Fatal(err)
	}
	return config
}

func TestParseRefusesWhatItWouldHaveToIgnore(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"another version":     {`{"apiVersion": "cuslice.dev/v2", "kind": "SliceConfig"}`, `want "cuslice.dev/v1alpha1"`},
		"no version":          {`{"kind": "SliceConfig"}`, "apiVersion"},
		"another kind":        {`{"apiVersion": "cuslice.dev/v1alpha1", "kind": "GpuConfig"}`, `"GpuConfig"`},
		"unknown field":       {object(`, "computePolicy": "hard"`), "computePolicy"},
		"field in other case": {object(`, "computelimit": 50`), "computelimit"},
		"field given twice":   {object(`, "computeLimit": 50, "computeLimit": 60`), "computeLimit"},
		"limit of nothing":    {object(`, "computeLimit": 0`), "1 to 100"},
		"limit past the GPU":  {object(`, "computeLimit": 101`), "1 to 100"},
		"negative limit":      {object(`, "computeLimit": -1`), "computeLimit"},
		"limit as text":       {object(`, "computeLimit": "50"`), "computeLimit"},
		"priority":            {object(`, "priority": "high"`), "Normal, Latency"},
		"injection":           {object(`, "injection": "file"`), "File, Env, None"},
		"oversubscription":    {object(`, "oversubscription": "Allowed"`), "Never"},
		"field for claims":    {object(`, "claimsMaySet": ["memory"]`), "computeLimit, priority, injection"},
		"no object":           {`[]`, "SliceConfig"},
		"nothing":             {``, "SliceConfig"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.text))
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v: want one with %q", err, c.want)
			}
		})
	}
}

func TestParseNamesEveryFault(t *testing.T) {
	_, err := Parse([]byte(object(`, "computeLimit": 0, "priority": "high"`)))
	if err == nil || !strings.Contains(err.Error(), "computeLimit") || !strings.Contains(err.Error(), "priority") {
		t.Errorf("error %v: want both faults", err)
	}
}

func TestResolve(t *testing.T) {
	for name, c := range map[string]struct {
		class, claim string
		compute      uint32
		want         Settings
		refused      string
	}{
		"defaults":                 {want: Settings{100, PriorityNormal, InjectionFile}},
		"class decides":            {class: `, "computeLimit": 50, "priority": "Latency", "injection": "Env"`, want: Settings{50, PriorityLatency, InjectionEnv}},
		"claim lowers its limit":   {class: `, "computeLimit": 50`, claim: `, "computeLimit": 30`, want: Settings{30, PriorityNormal, InjectionFile}},
		"claim repeats its class":  {class: `, "priority": "Latency"`, claim: `, "priority": "Latency"`, want: Settings{100, PriorityLatency, InjectionFile}},
		"claim raises its limit":   {class: `, "computeLimit": 50`, claim: `, "computeLimit": 51`, refused: "computeLimit 51"},
		"claim takes priority":     {claim: `, "priority": "Latency"`, refused: "priority Latency"},
		"claim leaves its slice":   {claim: `, "injection": "None"`, refused: "injection None"},
		"claim permits itself":     {claim: `, "priority": "Latency", "claimsMaySet": ["priority"]`, refused: "only a DeviceClass"},
		"class leaves the limit":   {class: `, "computeLimit": 50, "claimsMaySet": ["computeLimit"]`, claim: `, "computeLimit": 90`, want: Settings{90, PriorityNormal, InjectionFile}},
		"class leaves one field":   {class: `, "claimsMaySet": ["priority"]`, claim: `, "priority": "Latency", "injection": "Env"`, refused: "injection Env"},
		"class leaves all":         {class: `, "claimsMaySet": ["priority", "injection"]`, claim: `, "priority": "Latency", "injection": "Env"`, want: Settings{100, PriorityLatency, InjectionEnv}},
		"limit at the guarantee":   {claim: `, "computeLimit": 25`, compute: 25, want: Settings{25, PriorityNormal, InjectionFile}},
		"limit below guarantee":    {claim: `, "computeLimit": 20`, compute: 25, refused: "below the 25 percent"},
		"class below guarantee":    {class: `, "computeLimit": 20`, compute: 25, refused: "below the 25 percent"},
		"oversubscription is said": {claim: `, "oversubscription": "Never"`, want: Settings{100, PriorityNormal, InjectionFile}},
	} {
		t.Run(name, func(t *testing.T) {
			settings, err := Resolve([]*SliceConfig{mustParse(t, c.class)}, []*SliceConfig{mustParse(t, c.claim)}, c.compute)
			if c.refused != "" {
				if err == nil || !strings.Contains(err.Error(), c.refused) {
					t.Errorf("error %v: want one with %q", err, c.refused)
				}
				return
			}
			if err != nil || settings != c.want {
				t.Errorf("%+v, %v: want %+v", settings, err, c.want)
			}
		})
	}
}

func TestResolveTakesTheLaterOfOneSource(t *testing.T) {
	settings, err := Resolve(nil, []*SliceConfig{mustParse(t, `, "computeLimit": 30`), mustParse(t, `, "computeLimit": 40`)}, 10)
	if err != nil || settings.ComputeLimit != 40 {
		t.Errorf("%+v, %v: want the limit of the later", settings, err)
	}
}
