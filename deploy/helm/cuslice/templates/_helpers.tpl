{{- /* SPDX-License-Identifier: Apache-2.0 */ -}}

{{- define "cuslice.driver" -}}gpu.cuslice.dev{{- end -}}

{{- define "cuslice.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* A validation: requests of `class` name `capacity`, by either of its spellings, and each that they name passes `test`. */ -}}
{{- define "cuslice.capacityRule" -}}
{{- $names := printf "[%q, %q]" .capacity (printf "%s/%s" .driver .capacity) -}}
- expression: >-
    variables.choices.all(c, c.all(q, q.deviceClassName != {{ .class | quote }} ||
    ({{ $names }}.exists(n, n in q.?capacity.?requests.orValue({})) &&
    {{ $names }}.all(n, !(n in q.?capacity.?requests.orValue({})) ||
    quantity(string(q.capacity.requests[n])).{{ .test }}))))
  message: {{ .message | quote }}
{{- end -}}

{{- define "cuslice.tenancyRules" -}}
{{- $driver := include "cuslice.driver" . -}}
{{- range $key, $class := .Values.deviceClasses }}
{{- if $class.enabled }}
{{- if eq $class.namespaces "Labelled" }}
{{- $label := printf "%s/%s" $.Values.tenancy.labelPrefix $key }}
- expression: >-
    variables.choices.all(c, c.all(q, q.deviceClassName != {{ $class.name | quote }})) ||
    variables.labels[?{{ $label | quote }}].orValue("") == "allowed"
  message: >-
    the DeviceClass {{ $class.name }} is not for this namespace: use another class, or have an administrator label the namespace {{ $label }}=allowed
  reason: Forbidden
{{- end }}
{{- $bounds := get $class "maxPerDevice" | default dict }}
{{- range $capacity := list "memory" "compute" }}
{{- $bound := get $bounds $capacity }}
{{- if $bound }}
{{- include "cuslice.capacityRule" (dict "class" $class.name "driver" $driver "capacity" $capacity "test" (printf "compareTo(quantity(%q)) <= 0" (toString $bound)) "message" (printf "a request of the DeviceClass %s must name its %s, %v at most" $class.name $capacity $bound)) | nindent 0 }}
{{- end }}
{{- end }}
{{- if eq $key "dedicated" }}
{{- include "cuslice.capacityRule" (dict "class" $class.name "driver" $driver "capacity" "compute" "test" "compareTo(quantity(\"100\")) == 0" "message" (printf "a request of the DeviceClass %s is for all of a GPU's time: it must name compute 100" $class.name)) | nindent 0 }}
{{- include "cuslice.capacityRule" (dict "class" $class.name "driver" $driver "capacity" "memory" "test" "isGreaterThan(quantity(\"0\"))" "message" (printf "a request of the DeviceClass %s must name its memory: it gets no more than it names" $class.name)) | nindent 0 }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
