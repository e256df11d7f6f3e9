"""What Prometheus and Grafana need to watch a served model by its objectives: alert rules and a dashboard."""
