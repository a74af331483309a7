{{- define "tidegate.labels" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "tidegate.selector" -}}
app.kubernetes.io/name: tidegate
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "tidegate.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* One rule of agent.toml. Numbers of values are floats, which a TOML integer is not. */ -}}
{{- define "tidegate.rule" -}}
[[identity.rules]]
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}
{{ $key }} = { {{- $comma := "" }}{{- range $name, $text := $value }}{{ $comma }} {{ $name | quote }} = {{ $text | quote }}{{ $comma = "," }}{{ end }} }
{{- else if kindIs "string" $value }}
{{ $key }} = {{ $value | quote }}
{{- else }}
{{ $key }} = {{ int64 $value }}
{{- end }}
{{- end }}
{{- end }}

{{- define "tidegate.config" -}}
{{- range .Values.rules }}
{{ include "tidegate.rule" . }}
{{- end }}
[history]
file = "/var/lib/tidegate/history.ring"
[metrics]
listen = {{ if .Values.metrics.enabled }}"0.0.0.0:{{ int64 .Values.metrics.port }}"{{ else }}"off"{{ end }}
{{- with .Values.config }}
{{ . }}
{{- end }}
{{- end }}

{{- /* The API that injects: the one that is named, or the newest that the API server has; or nothing. */ -}}
{{- define "tidegate.admission" -}}
{{- $apis := .Capabilities.APIVersions }}
{{- $group := "admissionregistration.k8s.io" }}
{{- if eq .Values.inject.api "none" }}
{{- else if ne .Values.inject.api "auto" }}{{ $group }}/{{ .Values.inject.api }}
{{- else if $apis.Has (print $group "/v1/MutatingAdmissionPolicy") }}{{ $group }}/v1
{{- else if $apis.Has (print $group "/v1beta1/MutatingAdmissionPolicy") }}{{ $group }}/v1beta1
{{- end }}
{{- end }}

{{- /* Whether "auto", true or false is true, where "auto" asks for an API: (list $ VALUE API) */ -}}
{{- define "tidegate.wants" -}}
{{- $root := index . 0 }}{{ $value := toString (index . 1) }}
{{- if or (eq $value "true") (and (eq $value "auto") ($root.Capabilities.APIVersions.Has (index . 2))) }}yes{{ end }}
{{- end }}
