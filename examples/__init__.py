"""Examples that run from a checkout: ``python -m examples.llm_server``."""
