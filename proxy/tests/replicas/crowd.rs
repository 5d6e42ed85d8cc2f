//! Many handovers, and replicas that are stopped meanwhile.
