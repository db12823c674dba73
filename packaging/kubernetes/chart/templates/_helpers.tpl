{{- define "evenkeel.labels" -}}
app.kubernetes.io/name: evenkeel
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}
{{- define "evenkeel.selector" -}}
app.kubernetes.io/name: evenkeel
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
{{- define "evenkeel.name" -}}
{{- printf "%s-evenkeel" .Release.Name | replace "evenkeel-evenkeel" "evenkeel" | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- define "evenkeel.tokenSecret" -}}
{{- .Values.token.existingSecret | default (printf "%s-token" (include "evenkeel.name" .)) }}
{{- end }}
{{- define "evenkeel.tlsSecret" -}}
{{- .Values.tls.existingSecret | default (printf "%s-tls" (include "evenkeel.name" .)) }}
{{- end }}
{{- /* The name that the certificate is asked for, whatever a node's address is. */}}
{{- define "evenkeel.serverName" -}}
{{- printf "%s.%s.svc" (include "evenkeel.name" .) .Release.Namespace }}
{{- end }}
