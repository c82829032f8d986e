//! How many files this process may have open (getrlimit(2), `RLIMIT_NOFILE`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as nobody need be asked: the soft one to the hard one. What processes begin with, 1024 mostly, is low for the
/// sake of those that use select(2), which none of ours does.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // It may be refused only by somebody who watches system calls. Then it stays as low as it was, and who runs out of files says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
