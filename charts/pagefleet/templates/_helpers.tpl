{{- define "pagefleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 48 | trimSuffix "-" }}
{{- end }}

{{- /* Cut so that every suffix of ours still fits into 63 characters. */ -}}
{{- define "pagefleet.fullname" -}}
{{- $name := include "pagefleet.name" . }}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else if contains $name .Release.Name }}
{{- .Release.Name | trunc 48 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 48 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "pagefleet.operator" -}}
{{ include "pagefleet.fullname" . }}-operator
{{- end }}

{{- define "pagefleet.selector" -}}
app.kubernetes.io/name: {{ include "pagefleet.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "pagefleet.ownLabels" -}}
{{ include "pagefleet.selector" . }}
app.kubernetes.io/part-of: pagefleet
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- /* Labels and annotations of an object; ours win over commonLabels, so no key is ever rendered twice.
       Arguments: context, annotations (of this object alone). */ -}}
{{- define "pagefleet.metadata" -}}
labels:
  {{- merge (include "pagefleet.ownLabels" .context | fromYaml) (.context.Values.commonLabels | default dict) | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) (.context.Values.commonAnnotations | default dict) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "pagefleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "pagefleet.operator" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name must name an existing ServiceAccount when serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "pagefleet.image" -}}
{{- $tag := .Values.image.tag | default .Chart.AppVersion }}
{{- if .Values.image.digest }}
{{- printf "%s:%s@%s" .Values.image.repository $tag .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository $tag }}
{{- end }}
{{- end }}

{{- /* What the operator may do with the services it runs. Server-side apply needs create and patch; most
       children are deleted by the garbage collector alone, with their service. */ -}}
{{- define "pagefleet.rules" -}}
- apiGroups: [pagefleet.io]
  resources: [inferenceservices]
  verbs: [get, list, watch]
- apiGroups: [pagefleet.io]
  resources: [inferenceservices/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, create, patch, delete]
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, patch]
- apiGroups: [""]
  resources: [events]
  verbs: [list]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.readModelSecrets }}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
{{- end }}
