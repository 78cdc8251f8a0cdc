"""An external scaler for KEDA: the load of a service over gRPC."""
