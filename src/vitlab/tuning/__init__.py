"""Fine-tuning's ways: `free.py` says which parameters learn, `lora.py` adds thin matrices."""
