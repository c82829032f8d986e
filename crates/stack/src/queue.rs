//! Queues that are mostly short.

use std::collections::VecDeque;

/// Takes the first entry out. A queue that is empty then begins anew at the front of its memory: what comes next lies where the
/// last one lay, in lines that are in the cache, instead of going around.
#[inline]
pub(crate) fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        queue.clear();
    }
    first
}
