"""Enriched chunks in, searchable snapshots out. Knows neither Ray nor vLLM."""
