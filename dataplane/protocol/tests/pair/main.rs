//! Two ends of a version 2 connection, joined by queues, driven through simulated time.
//!
//! `world` models what is around a `Connection`: Receives that are posted and taken, messages on their way, a service
//! that answers. `simulation` lets generated schedules loose on it; the other modules are directed tests, named after
//! the rule that they show.

mod application;
mod chunked;
mod connections;
mod credits;
mod groups;
mod groups_simulation;
mod groups_wrong;
mod header_cache;
mod reverse;
mod robustness;
mod sequences;
mod simulation;
mod versions;
mod wire;
mod world;
