"""Samplers in the training loops of others: `integrations.lightning` and `integrations.hugging_face`, each
with what it is named after.
"""
