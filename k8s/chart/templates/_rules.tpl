{{- /* Alerts. Every metric's name is in tandem/runtime/metrics_table.py; `tandem_cluster` is set by the monitors. */ -}}

{{- /* dict root, name, severity, for, expr, summary, about: one alert; its runbook is a heading of docs/operations.md. */ -}}
{{- define "tandem.alert" -}}
- alert: {{ .name }}
  expr: {{ .expr | quote }}
  for: {{ .for }}
  labels:
    severity: {{ .severity }}
  annotations:
    summary: {{ .summary | quote }}
    description: {{ .about | quote }}
    runbook_url: {{ printf "%s#%s" .root.Values.monitoring.rules.runbook (lower .name) | quote }}
{{- end -}}

{{- define "tandem.rules" -}}
{{- $here := printf "tandem_cluster=%q" (include "tandem.cluster" .) -}}
{{- $rules := .Values.monitoring.rules -}}
{{- $roles := include "tandem.roles" . | fromJsonArray -}}
{{- $usable := "sum by (tandem_cluster) (max by (tandem_cluster, role) (tandem_worker_state{%s,state=\"usable\",role=~\"%s\"})) or 0 * max by (tandem_cluster) (tandem_registry_up{%s})" -}}
{{- $pair := printf $usable $here "prefill|decode" $here -}}
{{- $ring := printf $usable $here "colocated" $here -}}
{{- $routes := list -}}
{{- if has "prefill" $roles -}}{{- $routes = append $routes (printf "(%s) < 2" $pair) -}}{{- end -}}
{{- if has "colocated" $roles -}}{{- $routes = append $routes (printf "(%s) < 1" $ring) -}}{{- end -}}
{{- $good := printf "sum by (tandem_cluster) (rate(tandem_time_to_first_token_seconds_bucket{%s,le=~\"%v(\\\\.0)?\"}[5m]))" $here $rules.firstTokenSeconds -}}
{{- $begun := printf "sum by (tandem_cluster) (rate(tandem_time_to_first_token_seconds_count{%s}[5m]))" $here -}}
{{- $failed := printf "(sum by (tandem_cluster) (rate(tandem_http_requests_total{%s,code=~\"408|429|5..\"}[5m])) or 0 * max by (tandem_cluster) (tandem_registry_up{%s}))" $here $here -}}
- name: {{ include "tandem.fullname" . }}
  rules:
    {{- include "tandem.alert" (dict "root" . "name" "TandemRingStalled" "severity" "critical" "for" "30s"
      "expr" (printf "sum by (tandem_cluster, role, group) (increase(tandem_epoch_fences_total{%s,cause=\"stalled\"}[10m])) > 0 or (max by (tandem_cluster, role, group) (tandem_ring_lag_ticks{%s}) > 0 and sum by (tandem_cluster, role, group) (rate(tandem_tick_total{%s}[1m])) == 0)" $here $here $here)
      "summary" "The ring of {{ $labels.role }} group {{ $labels.group }} stalled."
      "about" "Ticks were in flight and none ended: an engine hangs, or a rank is silent. The group ends its epoch and forms again by itself."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemDivergence" "severity" "critical" "for" "0m"
      "expr" (printf "sum by (tandem_cluster, role, group) (increase(tandem_divergence_total{%s}[15m])) > 0" $here)
      "summary" "Ranks of {{ $labels.role }} group {{ $labels.group }} differed."
      "about" "A plan that differed was caught before it was launched. It is a bug or broken memory: keep the flight records."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemStrandedKv" "severity" "warning" "for" "1m"
      "expr" (printf "max by (tandem_cluster, role, group) (tandem_kv_oldest_hold_seconds{%s}) > %v" $here $rules.heldSeconds)
      "summary" "{{ $labels.role }} group {{ $labels.group }} has held KV pages for {{ $value | humanizeDuration }}."
      "about" "A peer gives no word and its fence does not come to an end. Held pages are lost to new requests."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemEdgeBreakerOpen" "severity" "warning" "for" "2m"
      "expr" (printf "max by (tandem_cluster, edge) (tandem_breaker_state{%s}) == 2" $here)
      "summary" "The breaker of {{ $labels.edge }} is open."
      "about" "Requests over this edge failed in a row; it is tried again now and then, and others are preferred."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemNoPair" "severity" "critical" "for" "1m"
      "expr" (join " and " $routes)
      "summary" "No group, or no pair of groups, can take a request."
      "about" "Every request is refused with 503 until a prefill and a decode group (or a colocated one) are usable."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemNoRouter" "severity" "critical" "for" "2m"
      "expr" (printf "absent(tandem_registry_up{%s})" $here)
      "summary" "No router of this cluster tells its metrics."
      "about" "Either there is no router, or Prometheus cannot reach its admin port, or shows it a wrong key."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemGroupNotUsable" "severity" "warning" "for" "10m"
      "expr" (printf "max by (tandem_cluster, role, group) (tandem_worker_state{%s,state=\"usable\"}) == 0" $here)
      "summary" "{{ $labels.role }} group {{ $labels.group }} takes no requests."
      "about" "No router sees it as usable, for ten minutes. /workers says which state it is in, and why."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemRegistryStale" "severity" "warning" "for" "1m"
      "expr" (printf "max by (tandem_cluster) (tandem_registry_stale_seconds{%s}) > %v" $here $rules.registrySeconds)
      "summary" "The registry has not been read for {{ $value | humanizeDuration }}."
      "about" "Whoever talks goes on talking; but nobody can join, so the next loss of a process is not made good."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemGoodputDrop" "severity" "warning" "for" "5m"
      "expr" (printf "(%s / (%s + %s)) < %v and (%s + %s) > %v" $good $begun $failed $rules.goodput $begun $failed $rules.minRequestsPerSecond)
      "summary" "Only {{ $value | humanizePercentage }} of the requests get their first token in time."
      "about" "Of all requests that had a first token or failed for want of room or of groups, so many had it in time."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemKvChecksum" "severity" "critical" "for" "0m"
      "expr" (printf "sum by (tandem_cluster, group) (increase(tandem_kv_checksum_mismatch_total{%s}[1h])) > 0" $here)
      "summary" "KV that came to group {{ $labels.group }} was not what was sent."
      "about" "The damage was found and computed anew. A card, a cable or a memory is broken, or a sample too small to find all."
    ) | nindent 4 }}
    {{- include "tandem.alert" (dict "root" . "name" "TandemTransportDegraded" "severity" "warning" "for" "5m"
      "expr" (printf "max by (tandem_cluster, role, group, rank) (tandem_kv_transport_info{%s,degraded=\"true\"}) == 1" $here)
      "summary" "Rank {{ $labels.rank }} of {{ $labels.role }} group {{ $labels.group }} moves KV over TCP instead of RDMA."
      "about" "It found no RDMA device when it started, and --transport-fallback allowed TCP."
    ) | nindent 4 }}
{{- end -}}

{{- /* What one role is scaled by: requests that it has or that wait for it. KEDA divides it by the number of groups. */ -}}
{{- define "tandem.scaleQuery" -}}
{{- $here := printf "tandem_cluster=%q" (include "tandem.cluster" .root) -}}
{{- $own := printf "%s,role=%q,rank=\"0\"" $here .role -}}
sum(tandem_running_requests{ {{- $own -}} }) + sum(tandem_waiting_requests{ {{- $own -}} ,queue=~"pages|host"})
{{- if ne .role "decode" }} + sum(tandem_router_queue_depth{ {{- $here -}} }){{ end -}}
{{- end -}}
