{{- define "olpager.name" -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "olpager.labels" -}}
app.kubernetes.io/name: olpager
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end -}}

{{- define "olpager.selector" -}}
app.kubernetes.io/name: olpager
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "olpager.image" -}}
{{- printf "%s:%s" .repository .tag | quote -}}
{{- end -}}

{{- /* Refused at once, not by a pod that never starts. */ -}}
{{- define "olpager.check" -}}
{{- if and .Values.metrics.podMonitor (not .Values.metrics.tokenSecret) -}}
{{- fail "metrics.podMonitor needs metrics.tokenSecret: figures beyond loopback have a token" -}}
{{- end -}}
{{- if and .Values.metrics.exporter (not .Values.metrics.tokenSecret) -}}
{{- fail "metrics.exporter needs metrics.tokenSecret: figures beyond loopback have a token" -}}
{{- end -}}
{{- if and (ne .Values.gpunode.driver "sim") .Values.gpunode.enabled (eq (int .Values.gpunode.gpus) 0) -}}
{{- fail "gpunode.gpus is 0: the gpunode has no GPU; or gpunode.driver: sim" -}}
{{- end -}}
{{- end -}}
