//! Registers in a BAR that is mapped into this process: each access is one load or store, as it stands in the source.
#![expect(
    unsafe_code,
    reason = "a BAR is a raw pointer into mapped memory: this file turns it into registers"
)]

use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::fence;

use crate::function::Registers;
use crate::shared::Mapping;

/// A function's registers. They keep the function, also when nobody has it any more.
#[derive(Clone)]
pub struct MappedRegisters {
    base: NonNull<u32>,
    words: usize,
    _bar: Arc<Mapping>,
    /// What must stay as long as they can be reached.
    _function: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for MappedRegisters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MappedRegisters").field("words", &self.words).finish_non_exhaustive()
    }
}

// SAFETY: `base` points into the mapping that `_bar` keeps, which belongs to the process; it is only reached by volatile
// accesses of aligned words, which no other access can tear.
unsafe impl Send for MappedRegisters {}
// SAFETY: as above.
unsafe impl Sync for MappedRegisters {}

impl MappedRegisters {
    /// Those of a BAR, which keep the function.
    pub(crate) fn new(bar: &Arc<Mapping>, function: Arc<dyn Any + Send + Sync>) -> Self {
        let words = bar.bytes() / size_of::<u32>();
        // A mapping begins at a page and has so many words.
        let base = bar.locate(0, words).unwrap_or(NonNull::dangling());
        Self { base, words, _bar: bar.clone(), _function: function }
    }

    /// Where the register at `offset` is; `None` outside the BAR.
    #[inline]
    fn at(&self, offset: u32) -> Option<NonNull<u32>> {
        let word = offset as usize / size_of::<u32>();
        // SAFETY: `words` of them lie within the mapping from `base` on, as `locate` found.
        (word < self.words).then(|| unsafe { self.base.add(word) })
    }
}

impl Registers for MappedRegisters {
    #[inline]
    fn read32(&self, offset: u32) -> u32 {
        // SAFETY: `at` gives addresses within the mapping, which `_bar` keeps; any bits are a `u32`.
        let value = self.at(offset).map_or(u32::MAX, |word| unsafe { word.read_volatile() });
        // What the function wrote to memory before it answered is seen after this.
        fence(Acquire);
        u32::from_le(value)
    }

    #[inline]
    fn write32(&self, offset: u32, value: u32) {
        fence(Release);
        if let Some(word) = self.at(offset) {
            // SAFETY: as in `read32`; nobody holds a reference to it.
            unsafe { word.write_volatile(value.to_le()) };
        }
    }
}
