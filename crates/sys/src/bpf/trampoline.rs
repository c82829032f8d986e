//! How a program is run often without an interface that has it.
//!
//! A run ([`Program::test_run`]) of a program that no interface has makes the kernel enter it into the trampoline from which XDP
//! programs are called, and take it out again, each time waiting until no CPU is in there: tens of milliseconds in all. A
//! program that is in there already spares it both. So it is put on the loopback interface of a network namespace that nobody
//! but us can reach, and through which nothing ever passes.

use std::io;

use super::{BpfError, Link, Program, XdpMode};
use crate::namespace::{Namespace, NamespaceError};

/// An XDP program's place in the kernel's trampoline; dropping it gives it up, and so does the end of the process.
#[derive(Debug)]
pub struct InTrampoline {
    _link: Link,
    _namespace: Namespace,
}

impl InTrampoline {
    /// Puts a program there. One that finds it full is not entered, and waits for nobody either.
    ///
    /// # Errors
    /// What the kernel says: without CAP_SYS_ADMIN no namespace can be made.
    pub fn put(program: &Program) -> Result<Self, BpfError> {
        const LOOPBACK: u32 = 1;
        let refused = |error: NamespaceError| {
            BpfError::new("making a namespace for a program", io::Error::other(error))
        };
        let namespace = Namespace::new().map_err(refused)?;
        let link = namespace.enter(|| Link::xdp(program, LOOPBACK, XdpMode::Generic)).map_err(refused)??;
        Ok(Self { _link: link, _namespace: namespace })
    }
}
