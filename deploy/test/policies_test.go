// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"strings"
	"testing"

	admissionrequest "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	celtypes "github.com/google/cel-go/cel"
)

const account = "system:serviceaccount:" + namespace + ":cuslice-kubeletplugin"

type expression struct{ text string }

func (e expression) GetExpression() string         { return e.text }
func (e expression) ReturnTypes() []*celtypes.Type { return []*celtypes.Type{celtypes.BoolType} }

type variable struct{ name, text string }

func (v variable) GetName() string       { return v.name }
func (v variable) GetExpression() string { return v.text }
func (v variable) ReturnTypes() []*celtypes.Type {
	return []*celtypes.Type{celtypes.AnyType, celtypes.DynType}
}

// ask is a request to the apiserver.
type ask struct {
	operation   admission.Operation
	kind        string
	resource    string
	object, old runtime.Object
	user        authenticationv1.UserInfo
	labels      map[string]string // of the namespace
}

// denials are the messages of the rules that refuse the request: what the apiserver does with a policy, by its own code.
func denials(t *testing.T, policy *admissionv1.ValidatingAdmissionPolicy, a ask) []string {
	t.Helper()
	gvk := schema.GroupVersionKind{Group: "resource.k8s.io", Version: "v1", Kind: a.kind}
	gvr := schema.GroupVersionResource{Group: "resource.k8s.io", Version: "v1", Resource: a.resource}
	attributes := admission.NewAttributesRecord(a.object, a.old, gvk, "tenant", "name", gvr, "", a.operation, nil, false, nil)
	versioned := &admission.VersionedAttributes{
		Attributes: attributes, VersionedKind: gvk, VersionedObject: admission.NewLazyObject(a.object), VersionedOldObject: admission.NewLazyObject(a.old),
	}
	request := cel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(gvr), metav1.GroupVersionKind(gvk))
	request.UserInfo = a.user
	space := cel.CreateNamespaceObject(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "tenant", Labels: a.labels}})

	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{}
	conditions := make([]cel.ExpressionAccessor, 0, len(policy.Spec.MatchConditions))
	for _, condition := range policy.Spec.MatchConditions {
		conditions = append(conditions, expression{condition.Expression})
	}
	for _, result := range evaluate(t, compiler.CompileCondition(conditions, options, environment.NewExpressions), versioned, request, space) {
		if !result {
			return nil
		}
	}

	for _, v := range policy.Spec.Variables {
		if result := compiler.CompileAndStoreVariable(variable{v.Name, v.Expression}, options, environment.NewExpressions); result.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, result.Error)
		}
	}
	validations := make([]cel.ExpressionAccessor, 0, len(policy.Spec.Validations))
	for _, validation := range policy.Spec.Validations {
		validations = append(validations, expression{validation.Expression})
	}
	var messages []string
	for i, allowed := range evaluate(t, compiler.CompileCondition(validations, options, environment.NewExpressions), versioned, request, space) {
		if !allowed {
			messages = append(messages, policy.Spec.Validations[i].Message)
		}
	}
	return messages
}

func evaluate(t *testing.T, evaluator cel.ConditionEvaluator, attributes *admission.VersionedAttributes,
	request *admissionrequest.AdmissionRequest, space *corev1.Namespace) []bool {
	t.Helper()
	for _, err := range evaluator.CompilationErrors() {
		t.Fatal(err)
	}
	results, _, err := evaluator.ForInput(context.Background(), attributes, request, cel.OptionalVariableBindings{}, space, celconfig.RuntimeCELCostBudget)
	if err != nil {
		t.Fatal(err)
	}
	var answers []bool
	for _, result := range results {
		if result.Error != nil {
			t.Fatal(result.Error)
		}
		answers = append(answers, result.EvalResult.Value() == true)
	}
	return answers
}

func expect(t *testing.T, got []string, want string) {
	t.Helper()
	if want == "" && len(got) > 0 {
		t.Errorf("refused with %q: want it taken", got)
	}
	if want != "" && (len(got) != 1 || !strings.Contains(got[0], want)) {
		t.Errorf("messages %q: want one with %q", got, want)
	}
}

func TestADriverWritesOnlyTheSlicesOfItsOwnNode(t *testing.T) {
	policy := find[*admissionv1.ValidatingAdmissionPolicy](t, decode(t, mustRender(t, "")), "slices.gpu.cuslice.dev")
	slice := func(driver, node string) *resourcev1.ResourceSlice {
		s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{Driver: driver}}
		if node != "" {
			s.Spec.NodeName = &node
		}
		return s
	}
	const ours = "gpu.cuslice.dev"
	for name, c := range map[string]struct {
		user, node  string // who asks, and the node that the token is bound to
		object, old *resourcev1.ResourceSlice
		want        string
	}{
		"own":                     {account, "a", slice(ours, "a"), nil, ""},
		"another node's":          {account, "a", slice(ours, "b"), nil, "its own node"},
		"no node's":               {account, "a", slice(ours, ""), nil, "its own node"},
		"another driver's":        {account, "a", slice("gpu.example.com", "a"), nil, "of the driver gpu.cuslice.dev"},
		"deletes its own":         {account, "a", nil, slice(ours, "a"), ""},
		"deletes another node's":  {account, "a", nil, slice(ours, "b"), "its own node"},
		"somebody else":           {"system:node:b", "", slice(ours, "b"), nil, ""},
		"same name, other tenant": {"system:serviceaccount:tenant:cuslice-kubeletplugin", "", slice(ours, "b"), nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			a := ask{operation: admission.Create, kind: "ResourceSlice", resource: "resourceslices", user: authenticationv1.UserInfo{Username: c.user}}
			if c.node != "" {
				a.user.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": {c.node}}
			}
			if c.object != nil {
				a.object = c.object
			}
			if c.old != nil {
				a.operation, a.old = admission.Delete, c.old
			}
			expect(t, denials(t, policy, a), c.want)
		})
	}

	unbound := ask{operation: admission.Create, kind: "ResourceSlice", resource: "resourceslices",
		object: slice(ours, ""), user: authenticationv1.UserInfo{Username: account}}
	expect(t, denials(t, policy, unbound), "bound to no node")
}

// claim is a ResourceClaim with these requests, in YAML.
func claim(t *testing.T, requests string) *resourcev1.ResourceClaim {
	t.Helper()
	text := "{apiVersion: resource.k8s.io/v1, kind: ResourceClaim, metadata: {name: c}, spec: {devices: {requests: [" + requests + "]}}}"
	json, err := yaml.YAMLToJSONStrict([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, []string{string(json)})[0].(*resourcev1.ResourceClaim)
}

func exactly(class, capacity string) string {
	return "{name: gpu, exactly: {deviceClassName: " + class + ", capacity: {requests: {" + capacity + "}}}}"
}

func TestTenancy(t *testing.T) {
	const bounded = `{deviceClasses: {shared: {maxPerDevice: {memory: 20Gi, compute: 25}}}}`
	const shared, dedicated, latency = "shared.gpu.cuslice.dev", "dedicated.gpu.cuslice.dev", "latency.gpu.cuslice.dev"
	for name, c := range map[string]struct {
		values, requests, label string
		want                    string
	}{
		"a class for all":               {requests: exactly(shared, "memory: 10Gi")},
		"another driver's class":        {requests: exactly("gpu.example.com", "")},
		"no capacity named":             {requests: "{name: gpu, exactly: {deviceClassName: " + shared + "}}"},
		"a class for the labelled":      {requests: exactly(latency, "compute: 10"), want: "label the namespace class.cuslice.dev/latency=allowed"},
		"labelled":                      {requests: exactly(latency, "compute: 10"), label: "latency"},
		"labelled for another":          {requests: exactly(latency, "compute: 10"), label: "dedicated", want: "latency=allowed"},
		"as an alternative":             {requests: "{name: gpu, firstAvailable: [{name: a, deviceClassName: " + shared + "}, {name: b, deviceClassName: " + latency + ", capacity: {requests: {compute: 10}}}]}", want: "latency=allowed"},
		"as the second request":         {requests: exactly(shared, "") + ", {name: two, exactly: {deviceClassName: " + latency + ", capacity: {requests: {compute: 10}}}}", want: "latency=allowed"},
		"latency past its bound":        {requests: exactly(latency, "compute: 51"), label: "latency", want: "50 at most"},
		"latency without its bound":     {requests: exactly(latency, "memory: 1Gi"), label: "latency", want: "must name its compute"},
		"a whole GPU":                   {requests: exactly(dedicated, "compute: 100, memory: 70Gi"), label: "dedicated"},
		"a whole GPU, qualified names":  {requests: exactly(dedicated, "gpu.cuslice.dev/compute: 100, gpu.cuslice.dev/memory: 70Gi"), label: "dedicated"},
		"part of a whole GPU":           {requests: exactly(dedicated, "compute: 99, memory: 70Gi"), label: "dedicated", want: "compute 100"},
		"a whole GPU without memory":    {requests: exactly(dedicated, "compute: 100"), label: "dedicated", want: "must name its memory"},
		"at the bounds":                 {values: bounded, requests: exactly(shared, "memory: 20Gi, compute: 25")},
		"memory past the bound":         {values: bounded, requests: exactly(shared, "memory: 20481Mi, compute: 25"), want: "20Gi at most"},
		"in plain bytes":                {values: bounded, requests: exactly(shared, "memory: 21474836481, compute: 25"), want: "20Gi at most"},
		"past it by the qualified name": {values: bounded, requests: exactly(shared, "gpu.cuslice.dev/memory: 21Gi, compute: 25"), want: "20Gi at most"},
		"past it by one of two names":   {values: bounded, requests: exactly(shared, "memory: 1Gi, gpu.cuslice.dev/memory: 21Gi, compute: 25"), want: "20Gi at most"},
		"the default of a bounded one":  {values: bounded, requests: exactly(shared, "compute: 25"), want: "must name its memory"},
	} {
		t.Run(name, func(t *testing.T) {
			policy := find[*admissionv1.ValidatingAdmissionPolicy](t, decode(t, mustRender(t, c.values)), "tenancy.gpu.cuslice.dev")
			labels := map[string]string{}
			if c.label != "" {
				labels["class.cuslice.dev/"+c.label] = "allowed"
			}
			object := claim(t, c.requests)
			expect(t, denials(t, policy, ask{operation: admission.Create, kind: "ResourceClaim", resource: "resourceclaims", object: object, labels: labels}), c.want)
			template := &resourcev1.ResourceClaimTemplate{Spec: resourcev1.ResourceClaimTemplateSpec{Spec: object.Spec}}
			expect(t, denials(t, policy, ask{operation: admission.Create, kind: "ResourceClaimTemplate", resource: "resourceclaimtemplates", object: template, labels: labels}), c.want)
		})
	}
}

func TestAClaimKeepsItsFinalizersWhenItsNamespaceLosesALabel(t *testing.T) {
	policy := find[*admissionv1.ValidatingAdmissionPolicy](t, decode(t, mustRender(t, "")), "tenancy.gpu.cuslice.dev")
	for _, rule := range policy.Spec.MatchConstraints.ResourceRules {
		if len(rule.Operations) != 1 || rule.Operations[0] != admissionv1.Create {
			t.Errorf("operations %v: want claims looked at when they are made, and only then", rule.Operations)
		}
	}
}
