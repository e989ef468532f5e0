{{- /* Names, labels, and what every pod has. */ -}}

{{- define "tandem.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains "tandem" .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-tandem" .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tandem.cluster" -}}
{{- .Values.cluster | default (include "tandem.fullname" .) -}}
{{- end -}}

{{- define "tandem.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{- /* dict root, component */ -}}
{{- define "tandem.selector" -}}
app.kubernetes.io/name: tandem
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "tandem.labels" -}}
{{ include "tandem.selector" . }}
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{- /* The roles that have groups, as a list in JSON. */ -}}
{{- define "tandem.roles" -}}
{{- $roles := list -}}
{{- range $role := list "prefill" "decode" "colocated" -}}
{{- if gt (int (index $.Values $role).groups) 0 -}}{{- $roles = append $roles $role -}}{{- end -}}
{{- end -}}
{{- toJson $roles -}}
{{- end -}}

{{- /* One flag for each entry of a map, as `tandem.core.commands.written` writes them. */ -}}
{{- define "tandem.flags" -}}
{{- range $name, $value := . -}}
{{- if kindIs "bool" $value -}}
{{- if $value }}
- --{{ $name }}
{{- end -}}
{{- else if kindIs "string" $value }}
- {{ printf "--%s=%s" $name $value | quote }}
{{- else if eq (float64 $value) (float64 (int64 $value)) }}
- {{ printf "--%s=%d" $name (int64 $value) | quote }}
{{- else }}
- {{ printf "--%s=%v" $name $value | quote }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "tandem.secretName" -}}
{{- .Values.secrets.existingSecret | default (include "tandem.fullname" .) -}}
{{- end -}}

{{- /* Where every process learns the registry's URL: it may hold a password, so it is no argument. */ -}}
{{- define "tandem.registryEnv" -}}
- name: TANDEM_REGISTRY_URL
  valueFrom:
    secretKeyRef:
{{- if .Values.registry.bundled.enabled }}
      name: {{ include "tandem.fullname" . }}-registry
      key: url
{{- else }}
      name: {{ required "registry.existingSecret: name the Secret with the URL of your Redis, or set registry.bundled.enabled" .Values.registry.existingSecret }}
      key: {{ .Values.registry.existingSecretKey }}
{{- end }}
{{- end -}}

{{- define "tandem.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ .Values.security.runAsUser }}
runAsGroup: {{ .Values.security.runAsGroup }}
fsGroup: {{ .Values.security.runAsGroup }}
fsGroupChangePolicy: OnRootMismatch
{{- with .Values.security.supplementalGroups }}
supplementalGroups: {{ toJson . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- /* dict root, capabilities */ -}}
{{- define "tandem.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- with .capabilities }}
  add: {{ toJson . }}
{{- end }}
{{- end -}}

{{- /* The files of all Tandem containers: root's Secret, lent to the pod's group, and the model. */ -}}
{{- define "tandem.volumes" -}}
- name: cluster-secret
  secret:
    secretName: {{ include "tandem.secretName" . }}
    defaultMode: 0440
    items:
      - key: cluster-secret
        path: secret
- name: tmp
  emptyDir:
    sizeLimit: {{ .Values.tmp.sizeLimit }}
{{- if .Values.model.volume }}
- name: model
  {{- toYaml .Values.model.volume | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "tandem.mounts" -}}
- name: cluster-secret
  mountPath: /etc/tandem/cluster
  readOnly: true
- name: tmp
  mountPath: /tmp
{{- if .Values.model.volume }}
- name: model
  mountPath: {{ .Values.model.mountPath }}
  readOnly: true
{{- end }}
{{- end -}}

{{- /* dict root, own: where pods go. What a component says stands before what `scheduling` says for all. */ -}}
{{- define "tandem.scheduling" -}}
{{- range $name := list "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" "runtimeClassName" -}}
{{- with (index $.own $name) | default (index $.root.Values.scheduling $name) }}
{{ $name }}: {{ toJson . }}
{{- end -}}
{{- end -}}
{{- with $.root.Values.imagePullSecrets }}
imagePullSecrets: {{ toJson . }}
{{- end -}}
{{- end -}}

{{- /* Seconds from the first sign of the end to the last: what drains, and what is left to say. */ -}}
{{- define "tandem.graceSeconds" -}}
{{- add (ceil .Values.drainSeconds | int64) 15 -}}
{{- end -}}
