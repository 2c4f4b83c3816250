"""Ask a service that `vitlab serve` started, on this machine or another."""
