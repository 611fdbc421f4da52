"""Documents in, enriched chunks out. Knows neither Ray nor storage nor indexes."""
