//! Behaviour through the public interface.

mod support;
mod damage;
mod tar;
mod arrow;
mod parquet;
mod parquet_encodings;
mod crafted_parquet;
mod damaged_parquet;
mod parquet_writer;
