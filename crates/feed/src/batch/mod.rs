//! A batch: the shapes it comes in, its fields, the bytes the feed takes for it, and its layout without padding.

pub(crate) mod shape;
pub(crate) mod schema;
pub(crate) mod feed_plan;
pub(crate) mod info;
pub(crate) mod exact;
