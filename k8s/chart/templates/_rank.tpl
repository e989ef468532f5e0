{{- /* The pod of one rank. dict root, role, index: how it learns which group it is in, rank: which rank. Both are names
of a label of the pod, or `index` is a number. The flags are those of `tandem prefill --help`. */ -}}

{{- define "tandem.rankFlags" -}}
{{- $root := .root -}}
{{- $values := $root.Values -}}
{{- $own := index $values .role -}}
{{- $prefix := dict "prefill" "p" "decode" "d" "colocated" "c" -}}
{{- $place := dict
  "cluster" (include "tandem.cluster" $root)
  "group" (printf "%s$(TANDEM_GROUP_INDEX)" (index $prefix .role))
  "rank" "$(TANDEM_RANK)"
  "pp-size" $own.ppSize
  "model" $values.model.path
  "served-model-name" $values.model.name
  "cluster-secret-file" "/etc/tandem/cluster/secret"
  "run-dir" "/dev/shm/tandem"
  "dump-dir" "/var/lib/tandem/dumps"
  "bind" "$(POD_IP)"
  "http-host" "$(POD_IP)"
  "http-port" $values.ranks.httpPort
  "drain-s" $values.drainSeconds
-}}
{{- include "tandem.flags" (merge $place (include "tandem.ownFlags" . | fromJson)) -}}
{{- end -}}

{{- /* What the operator says for this role, and else for all ranks, and threads for its cores; `merge` would take a 0 or false for nothing said. */ -}}
{{- define "tandem.ownFlags" -}}
{{- $flags := dict "threads" (include "tandem.threads" . | int) -}}
{{- range $said := list .root.Values.ranks.flags (index .root.Values .role).flags -}}
{{- range $name, $value := $said -}}{{- $_ := set $flags $name $value -}}{{- end -}}
{{- end -}}
{{- toJson $flags -}}
{{- end -}}

{{- /* The whole cores of a rank's pod: those that it may use at most, or those that it asks for; without either, one. */ -}}
{{- define "tandem.threads" -}}
{{- $resources := (index .root.Values .role).resources -}}
{{- $asked := get ($resources.requests | default dict) "cpu" -}}
{{- $cpu := get ($resources.limits | default dict) "cpu" | default $asked | default 1 | toString -}}
{{- if hasSuffix "m" $cpu -}}
{{- max 1 (div (trimSuffix "m" $cpu | int) 1000) -}}
{{- else -}}
{{- max 1 (floor (float64 $cpu) | int) -}}
{{- end -}}
{{- end -}}

{{- define "tandem.rankPod" -}}
{{- $root := .root -}}
{{- $flags := include "tandem.ownFlags" . | fromJson -}}
{{- $values := $root.Values -}}
{{- $own := index $values .role -}}
{{- $capabilities := ternary (list "IPC_LOCK") (list) $values.rdma.enabled -}}
metadata:
  labels:
    {{- include "tandem.labels" (dict "root" $root "component" .role) | nindent 4 }}
    {{- with $own.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with merge (dict) $own.podAnnotations $values.ranks.podAnnotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ include "tandem.graceSeconds" $root }}
  securityContext:
    {{- include "tandem.podSecurity" $root | nindent 4 }}
  {{- include "tandem.scheduling" (dict "root" $root "own" $own) | nindent 2 }}
  {{- if $values.ranks.preflight }}
  initContainers:
    - name: preflight
      image: {{ include "tandem.image" $root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [tandem]
      args:
        - doctor
        - {{ printf "--cluster=%s" (include "tandem.cluster" $root) | quote }}
        - --cluster-secret-file=/etc/tandem/cluster/secret
        {{- range $name := list "transport-protocol" "transport-device" }}
        {{- with index $flags $name }}
        - {{ printf "--%s=%s" $name . | quote }}
        {{- end }}
        {{- end }}
      env:
        {{- include "tandem.rankEnv" . | nindent 8 }}
      resources:
        {{- include "tandem.rankResources" . | nindent 8 }}
      securityContext:
        {{- include "tandem.containerSecurity" (dict "capabilities" $capabilities) | nindent 8 }}
      volumeMounts:
        {{- include "tandem.rankMounts" $root | nindent 8 }}
  {{- end }}
  containers:
    - name: rank
      image: {{ include "tandem.image" $root }}
      imagePullPolicy: {{ $values.image.pullPolicy }}
      command: [tandem]
      args:
        - {{ .role }}
        {{- include "tandem.rankFlags" . | nindent 8 }}
      env:
        {{- include "tandem.rankEnv" . | nindent 8 }}
      ports:
        - name: http
          containerPort: {{ $values.ranks.httpPort }}
      startupProbe:
        httpGet:
          path: /startupz
          port: http
        periodSeconds: 5
        timeoutSeconds: 5
        failureThreshold: {{ div (add $values.ranks.startupSeconds 4) 5 }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        periodSeconds: 2
        timeoutSeconds: 3
        failureThreshold: 1
      livenessProbe:
        httpGet:
          path: /livez
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      resources:
        {{- include "tandem.rankResources" . | nindent 8 }}
      securityContext:
        {{- include "tandem.containerSecurity" (dict "capabilities" $capabilities) | nindent 8 }}
      volumeMounts:
        {{- include "tandem.rankMounts" $root | nindent 8 }}
  volumes:
    {{- include "tandem.volumes" $root | nindent 4 }}
    - name: shm
      emptyDir:
        medium: Memory
        sizeLimit: {{ $values.ranks.shm.sizeLimit }}
    - name: dumps
      {{- toYaml $values.ranks.dumps.volume | nindent 6 }}
{{- end -}}

{{- define "tandem.rankMounts" -}}
{{ include "tandem.mounts" . }}
- name: shm
  mountPath: /dev/shm
- name: dumps
  mountPath: /var/lib/tandem
{{- end -}}

{{- define "tandem.rankEnv" -}}
- name: POD_IP
  valueFrom:
    fieldRef:
      fieldPath: status.podIP
- name: TANDEM_RANK
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ .rank }}']
- name: TANDEM_GROUP_INDEX
{{- if kindIs "string" .index }}
  valueFrom:
    fieldRef:
      fieldPath: metadata.labels['{{ .index }}']
{{- else }}
  value: {{ .index | quote }}
{{- end }}
- name: HOME
  value: /tmp
- name: MC_MIN_RPC_PORT
  value: {{ .root.Values.ranks.mooncakePorts.first | quote }}
- name: MC_MAX_RPC_PORT
  value: {{ .root.Values.ranks.mooncakePorts.last | quote }}
{{ include "tandem.registryEnv" .root }}
{{- with .root.Values.ranks.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* With RDMA each rank asks for the device as well, and a limit of an extended resource must equal its request. */ -}}
{{- define "tandem.rankResources" -}}
{{- $resources := deepCopy (index .root.Values .role).resources -}}
{{- if .root.Values.rdma.enabled -}}
{{- $device := dict .root.Values.rdma.resource (.root.Values.rdma.count | toString) -}}
{{- $_ := set $resources "limits" (merge $device ($resources.limits | default dict)) -}}
{{- $_ := set $resources "requests" (merge $device ($resources.requests | default dict)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}
