//! Stages that run on threads of their own and hand tensors to each other.
