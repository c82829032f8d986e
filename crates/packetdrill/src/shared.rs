//! One machine for several threads: system calls that wait, and the clock that goes on meanwhile.
//!
//! The thread that loaded the plug-in drives the clock. Another one that must wait sleeps until the driver has moved
//! something. The driver does not go on before each of them has looked, and before those that got what they waited for
//! have read the clock: so what they see does not depend on who is scheduled when.

use std::ffi::c_int;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

use bywash_stack::Timestamp;

use crate::errno::{AGAIN, Errno, Result};
use crate::machine::Machine;

/// How long in real time the driver waits for other threads: they have only to look.
const PATIENCE: Duration = Duration::from_millis(500);
/// Real time for another thread to note down what it has got.
const GRACE: Duration = Duration::from_millis(2);
/// How far the clock goes when all wait for something that perhaps never comes.
const LONGEST: Duration = Duration::from_secs(5 * 3600);

#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    /// The driver has moved something.
    moved: Condvar,
    /// A thread has looked, or read the clock.
    looked: Condvar,
    driver: ThreadId,
}

#[derive(Debug)]
struct State {
    machine: Machine,
    /// Threads that wait, with the moments at which they give up.
    waiting: usize,
    deadlines: Vec<Timestamp>,
    /// Grows whenever those that wait are to look.
    turn: u64,
    /// How many have looked in this turn.
    looks: usize,
    /// Threads that got what they waited for and have not read the clock yet.
    returning: usize,
    /// One has read the clock: it now has something to note down.
    returned: bool,
}

/// Whether, and how long, a call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    None,
    Until(Timestamp),
    Forever,
}

impl Patience {
    /// How long a call on a socket may wait.
    pub(crate) fn of(fd: c_int, flags: c_int, writes: bool) -> impl FnOnce(&Machine) -> Self {
        move |machine| {
            let Ok(socket) = machine.sockets.get(fd) else { return Self::None };
            let limit = if writes { socket.options.send_timeout } else { socket.options.receive_timeout };
            match limit {
                _ if socket.nonblocking || flags & (libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) != 0 => {
                    Self::None
                }
                Some(limit) => Self::Until(machine.now + limit),
                None => Self::Forever,
            }
        }
    }

    /// Milliseconds, or for ever when negative.
    pub(crate) fn millis(timeout: c_int) -> impl FnOnce(&Machine) -> Self {
        move |machine| match u64::try_from(timeout) {
            Ok(0) => Self::None,
            Ok(millis) => Self::Until(machine.now + Duration::from_millis(millis)),
            Err(_) => Self::Forever,
        }
    }
}

impl Shared {
    pub(crate) fn new(machine: Machine) -> Self {
        let (deadlines, turn) = (Vec::new(), 0);
        let state = State { machine, waiting: 0, deadlines, turn, looks: 0, returning: 0, returned: false };
        Self {
            state: Mutex::new(state),
            moved: Condvar::new(),
            looked: Condvar::new(),
            driver: std::thread::current().id(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn drives(&self) -> bool {
        std::thread::current().id() == self.driver
    }

    /// Does something at once.
    pub(crate) fn with<T>(&self, work: impl FnOnce(&mut Machine) -> T) -> T {
        let mut state = self.lock();
        let result = work(&mut state.machine);
        state.machine.run();
        if self.drives() {
            drop(self.settle(state));
        }
        result
    }

    /// Does a system call, again and again while it would block (`EAGAIN`) and may.
    pub(crate) fn call<T>(
        &self,
        patience: impl FnOnce(&Machine) -> Patience,
        mut call: impl FnMut(&mut Machine) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.lock();
        let mut result = call(&mut state.machine);
        state.machine.run();
        let patience = if matches!(result, Err(AGAIN)) { patience(&state.machine) } else { Patience::None };
        let until = match patience {
            Patience::None => {
                if self.drives() {
                    drop(self.settle(state));
                }
                return result;
            }
            Patience::Until(at) => at,
            Patience::Forever => state.machine.now + LONGEST,
        };
        state.deadlines.push(until);
        while matches!(result, Err(AGAIN)) && state.machine.now < until {
            state = if self.drives() { self.step(state, until).0 } else { self.sleep(state) };
            result = call(&mut state.machine);
            state.machine.run();
            if !self.drives() {
                state.looks += 1;
                state.returning += usize::from(!matches!(result, Err(AGAIN)) || state.machine.now >= until);
                self.looked.notify_all();
            }
        }
        state.deadlines.retain({
            let mut once = true;
            move |at| *at != until || !std::mem::take(&mut once)
        });
        if matches!((&result, patience), (Err(AGAIN), Patience::Forever)) {
            // Nothing will ever happen: a program would be woken by a signal.
            return Err(Errno(libc::EINTR));
        }
        result
    }

    /// Waits for the driver, as a thread that does not drive.
    fn sleep<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let turn = state.turn;
        state.waiting += 1;
        self.looked.notify_all();
        while state.turn == turn {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting -= 1;
        state
    }

    /// Lets those that wait look at what has changed.
    fn settle<'a>(&self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        if state.waiting > 0 {
            let all = state.waiting;
            state.turn += 1;
            state.looks = 0;
            self.moved.notify_all();
            // Whoever has looked holds the lock until it waits again or has got something: none is between the two then.
            state = self.patiently(state, |state: &mut State| state.looks < all);
        }
        state = self.patiently(state, |state: &mut State| state.returning > 0);
        state.returning = 0;
        state
    }

    fn patiently<'a>(
        &self,
        state: MutexGuard<'a, State>,
        wait: impl FnMut(&mut State) -> bool,
    ) -> MutexGuard<'a, State> {
        let waited = self.looked.wait_timeout_while(state, PATIENCE, wait);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Moves the clock to the next moment at which something happens, at most to `until`; `false` when that is reached.
    fn step<'a>(&self, mut state: MutexGuard<'a, State>, until: Timestamp) -> (MutexGuard<'a, State>, bool) {
        let next = state.machine.host.next_deadline();
        let next = next.into_iter().chain(state.deadlines.iter().copied()).chain([until]);
        let now = state.machine.now;
        let next = next.filter(|at| *at > now).min().unwrap_or(until);
        state.machine.advance_to(next);
        let state = self.settle(state);
        let more = state.machine.now < until;
        (state, more)
    }

    /// Lets time pass.
    pub(crate) fn sleep_for(&self, time: Duration) {
        let mut state = self.lock();
        let until = state.machine.now + time;
        let mut more = state.machine.now < until;
        while more {
            (state, more) = self.step(state, until);
        }
        if std::mem::take(&mut state.returned) {
            drop(state);
            // No virtual sleep gives another thread the time to take packetdrill's lock and say what it has got.
            std::thread::sleep(GRACE);
        }
    }

    /// The clock. It goes on a little each time, for who waits by looking at it: packetdrill's second thread does so as well,
    /// before a call that begins later. One that a call has just returned to is to see when that was.
    pub(crate) fn time(&self) -> Duration {
        let mut state = self.lock();
        if self.drives() {
            return state.machine.look();
        }
        state.returned = true;
        if state.returning == 0 {
            return state.machine.look();
        }
        state.returning -= 1;
        self.looked.notify_all();
        state.machine.time()
    }

    /// The next packet that the stack sends, and when; none when it never will.
    pub(crate) fn sent(&self) -> Option<(Duration, Vec<u8>)> {
        let mut state = self.lock();
        let until = state.machine.now + LONGEST;
        let mut more = true;
        while more && !state.machine.has_sent() {
            if state.machine.host.next_deadline().is_none() && state.deadlines.is_empty() {
                break;
            }
            (state, more) = self.step(state, until);
        }
        state.machine.sent()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Flags;

    #[test]
    fn a_second_thread_that_waits_by_looking_at_the_clock_sees_it_go_on() {
        let machine = Machine::new(Flags::parse("sysctls=fixed").unwrap()).unwrap();
        let shared = Shared::new(machine);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let begin = shared.time();
                assert!((0..1000).any(|_| shared.time() >= begin + Duration::from_micros(500)));
            });
        });
    }
}
