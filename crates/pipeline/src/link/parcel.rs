//! What comes out of a link: an item, and the bytes it still holds.

use std::ops::{Deref, DerefMut};

use super::shared::Shared;
use crate::sync::{Arc, lock};

/// Holding one of these means that its item is still in flight: its bytes go back to the link when it is dropped.
pub struct Parcel<T> {
    // In this order: the item's memory is gone before its bytes are given to another.
    item: T,
    load: Load<T>,
}

/// The bytes of an item that has been taken out of its [`Parcel`]. They go back when this is dropped.
pub struct Load<T> {
    shared: Arc<Shared<T>>,
    bytes: u64,
}

impl<T> Parcel<T> {
    pub(super) fn new(item: T, load: Load<T>) -> Self {
        Self { item, load }
    }

    /// Takes the item out and gives its bytes back at once: for an item that is small from here on, or that somebody
    /// else counts.
    pub fn into_inner(self) -> T {
        self.item
    }

    /// Takes the item out and keeps its bytes in flight until the load is dropped: for an item that is used up on the
    /// way to something else.
    pub fn split(self) -> (T, Load<T>) {
        (self.item, self.load)
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.load.bytes
    }
}

impl<T> Deref for Parcel<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.item
    }
}

impl<T> DerefMut for Parcel<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.item
    }
}

impl<T> Load<T> {
    pub(super) fn new(shared: Arc<Shared<T>>, bytes: u64) -> Self {
        Self { shared, bytes }
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl<T> Drop for Load<T> {
    fn drop(&mut self) {
        let mut book = lock(&self.shared.book);
        book.bytes_in_flight -= self.bytes;
        self.shared.wake(book);
    }
}
