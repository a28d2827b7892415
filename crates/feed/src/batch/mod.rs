//! A batch: the shapes it comes in, its fields, the bytes it takes, and its layout without padding.

pub(crate) mod shape;
pub(crate) mod schema;
pub(crate) mod feed_plan;
pub(crate) mod exact;
