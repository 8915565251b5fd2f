"""Every kind of trouble with drivers: what NVML says, what the user sees (docs/drivers.md)."""
