//! The plug-in interface of packetdrill (its `packetdrill.h`): a structure of C functions, filled in by
//! `packetdrill_interface_init`. All that is not memory safe of this crate is here: pointers become slices, numbers
//! become `errno`, and the work is done elsewhere.
#![expect(unsafe_code, reason = "C functions that are given pointers")]

use std::ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_ulong, c_void};
use std::fs::File;
use std::io::Seek;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use libc::{
    epoll_event, iovec, loff_t, msghdr, off_t, pollfd, size_t, sockaddr, socklen_t, ssize_t, timeval,
};

use crate::errno::{AGAIN, Errno, INVALID, Result};
use crate::machine::Machine;
use crate::options::TCP_INQ;
use crate::reports::{Control, put_controls};
use crate::settings::Flags;
use crate::shared::{Patience, Shared};
use crate::transfer::Received;

type Data = *mut c_void;

/// Bytes of a file that go into a socket by one call at most.
const AT_ONCE: usize = 1 << 20;
/// Linux's `UIO_MAXIOV`.
const PARTS: usize = 1024;

/// The functions in the order of packetdrill's `struct packetdrill_interface`. `fcntl` and `ioctl` are variadic in C; in
/// the x86-64 calling convention their third argument is where a fixed one is.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[expect(missing_docs, reason = "each is the system call of its name")]
pub struct Interface {
    pub userdata: Data,
    pub free: extern "C" fn(Data),
    pub socket: extern "C" fn(Data, c_int, c_int, c_int) -> c_int,
    pub bind: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    pub listen: extern "C" fn(Data, c_int, c_int) -> c_int,
    pub accept: extern "C" fn(Data, c_int, *mut sockaddr, *mut socklen_t) -> c_int,
    pub connect: extern "C" fn(Data, c_int, *const sockaddr, socklen_t) -> c_int,
    pub read: extern "C" fn(Data, c_int, *mut c_void, size_t) -> ssize_t,
    pub readv: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub recv: extern "C" fn(Data, c_int, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom:
        extern "C" fn(Data, c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t,
    pub recvmsg: extern "C" fn(Data, c_int, *mut msghdr, c_int) -> ssize_t,
    pub write: extern "C" fn(Data, c_int, *const c_void, size_t) -> ssize_t,
    pub writev: extern "C" fn(Data, c_int, *const iovec, c_int) -> ssize_t,
    pub send: extern "C" fn(Data, c_int, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto:
        extern "C" fn(Data, c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t,
    pub sendmsg: extern "C" fn(Data, c_int, *const msghdr, c_int) -> ssize_t,
    pub fcntl: extern "C" fn(Data, c_int, c_int, c_long) -> c_int,
    pub ioctl: extern "C" fn(Data, c_int, c_ulong, *mut c_int) -> c_int,
    pub close: extern "C" fn(Data, c_int) -> c_int,
    pub shutdown: extern "C" fn(Data, c_int, c_int) -> c_int,
    pub getsockopt: extern "C" fn(Data, c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int,
    pub setsockopt: extern "C" fn(Data, c_int, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: extern "C" fn(Data, *mut pollfd, libc::nfds_t, c_int) -> c_int,
    pub netdev_send: extern "C" fn(Data, *const c_void, size_t) -> c_int,
    pub netdev_receive: extern "C" fn(Data, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: extern "C" fn(Data, c_uint) -> c_int,
    pub gettimeofday: extern "C" fn(Data, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: extern "C" fn(Data, c_int) -> c_int,
    pub epoll_ctl: extern "C" fn(Data, c_int, c_int, c_int, *mut epoll_event) -> c_int,
    pub epoll_wait: extern "C" fn(Data, c_int, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: extern "C" fn(Data, *mut c_int) -> c_int,
    pub splice: extern "C" fn(Data, c_int, *mut loff_t, c_int, *mut loff_t, size_t, c_uint) -> ssize_t,
}

const _: () = assert!(size_of::<Interface>() == 33 * 8, "33 words, as in packetdrill.h");

/// The machine that was made last, for `getsockopt` below.
static LATEST: AtomicPtr<Shared> = AtomicPtr::new(std::ptr::null_mut());

/// Fills in the interface; packetdrill calls it once, from the thread that will drive the clock. Flags that mean nothing
/// end the program with a sentence, for there is no other way to tell.
///
/// # Safety
/// `flags` is null or a string that ends with a zero, `interface` points to room for an [`Interface`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, interface: *mut Interface) {
    // SAFETY: not null, so it is a string that ends with a zero, as `flags` is promised to be.
    let text = if flags.is_null() { c"" } else { unsafe { CStr::from_ptr(flags) } };
    let machine = Flags::parse(&text.to_string_lossy()).and_then(Machine::new);
    let machine = match machine {
        Ok(machine) => machine,
        Err(sentence) => fail(&sentence),
    };
    let userdata = Box::into_raw(Box::new(Shared::new(machine)));
    LATEST.store(userdata, Ordering::Release);
    let filled = Interface {
        userdata: userdata.cast(),
        free,
        socket,
        bind,
        listen,
        accept,
        connect,
        read,
        readv,
        recv,
        recvfrom,
        recvmsg,
        write,
        writev,
        send,
        sendto,
        sendmsg,
        fcntl,
        ioctl,
        close,
        shutdown,
        getsockopt: get_option,
        setsockopt: set_option,
        poll,
        netdev_send,
        netdev_receive,
        usleep,
        gettimeofday,
        epoll_create,
        epoll_ctl,
        epoll_wait,
        pipe,
        splice,
    };
    // SAFETY: `interface` is promised to point to room for an `Interface`; what was there is plain data or nothing.
    unsafe { interface.write(filled) };
}

fn fail(sentence: &str) -> ! {
    use std::io::Write;
    // Where nobody reads standard error, the status must do.
    writeln!(std::io::stderr(), "bywash-packetdrill: {sentence}").ok();
    std::process::exit(2)
}

/// The C library's `getsockopt`, for packetdrill's own use of it (see the crate's first lines): for sockets of ours it asks
/// the stack, for others the kernel.
///
/// # Safety
/// As getsockopt(2): `value` points to as many bytes as `length` says, and both can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    length: *mut socklen_t,
) -> c_int {
    let latest = LATEST.load(Ordering::Acquire);
    if !latest.is_null() && shared(latest.cast()).with(|machine| machine.sockets.get(fd).is_ok()) {
        return get_option(latest.cast(), fd, level, name, value, length);
    }
    // SAFETY: the caller's promise is the kernel's condition.
    let result = unsafe { libc::syscall(libc::SYS_getsockopt, fd, level, name, value, length) };
    c_int::try_from(result).unwrap_or(-1)
}

/// The C library's `sendfile`, for which packetdrill's interface has no place either: into a socket of ours, of a file that the
/// kernel has; else the kernel's.
///
/// # Safety
/// As sendfile(2): `at` is null, or points to a number that can be read and written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn sendfile(to: c_int, from: c_int, at: *mut off_t, len: size_t) -> ssize_t {
    let latest = LATEST.load(Ordering::Acquire);
    if latest.is_null() || shared(latest.cast()).with(|machine| machine.sockets.get(to).is_err()) {
        // SAFETY: the caller's promise is the kernel's condition.
        let result = unsafe { libc::syscall(libc::SYS_sendfile, to, from, at, len) };
        return ssize_t::try_from(result).unwrap_or(-1);
    }
    // SAFETY: not null, so by the caller's promise it can be read.
    let given = (!at.is_null()).then(|| unsafe { at.read() });
    let sent = file(from).and_then(|mut file| {
        let place = match given {
            Some(at) => u64::try_from(at).map_err(|_| INVALID)?,
            None => file.stream_position().map_err(|_| Errno(libc::ESPIPE))?,
        };
        let mut bytes = vec![0; len.min(AT_ONCE)];
        let n = file.read_at(&mut bytes, place).map_err(|_| INVALID)?;
        let sent = deliver(latest.cast(), to, &bytes[..n], 0, None)?;
        if given.is_none() {
            file.seek_relative(sent as i64).map_err(|_| Errno(libc::ESPIPE))?;
        }
        Ok(sent)
    });
    if let (Some(begin), Ok(sent)) = (given, &sent) {
        // SAFETY: it was given, so it is not null, and by the caller's promise it can be written.
        unsafe { at.write(begin + *sent as i64) };
    }
    answer(sent)
}

/// A file of the kernel's, with the place where it is read in common with the number that names it.
fn file(fd: c_int) -> Result<File> {
    if fd < 0 {
        return Err(Errno(libc::EBADF));
    }
    // SAFETY: it is looked at for this one call, in which the caller has no cause to close it; if nothing is there, the kernel says so.
    let file = unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned();
    file.map(File::from).map_err(|_| Errno(libc::EBADF))
}

/// The machine behind `userdata`.
fn shared<'a>(userdata: Data) -> &'a Shared {
    // SAFETY: `userdata` is what `packetdrill_interface_init` made of a box, and packetdrill hands it back unchanged
    // until it calls `free`, which is the last call of all.
    unsafe { &*userdata.cast_const().cast::<Shared>() }
}

extern "C" fn free(userdata: Data) {
    let null = std::ptr::null_mut();
    // A later one stays.
    LATEST.compare_exchange(userdata.cast(), null, Ordering::AcqRel, Ordering::Acquire).ok();
    // SAFETY: from `Box::into_raw` in `packetdrill_interface_init`; this is the last call with it.
    let shared = unsafe { Box::from_raw(userdata.cast::<Shared>()) };
    shared.with(|machine| machine.sockets.abandon());
}

trait Answer: Sized {
    const FAILED: Self;
}

impl Answer for c_int {
    const FAILED: Self = -1;
}

impl Answer for ssize_t {
    const FAILED: Self = -1;
}

/// A result as C has it: -1, and the number in `errno`.
fn answer<T: Answer>(result: Result<T>) -> T {
    result.unwrap_or_else(|Errno(number)| {
        // SAFETY: the C library's errno of this thread, which lives as long as the thread.
        unsafe { *libc::__errno_location() = number };
        T::FAILED
    })
}

fn done(result: Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

fn count(n: usize) -> ssize_t {
    ssize_t::try_from(n).unwrap_or(ssize_t::MAX)
}

/// Bytes that a call is given.
fn bytes<'a>(start: *const c_void, len: size_t) -> Result<&'a [u8]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller of the system call owns `len` bytes there, and waits for us.
        _ => Ok(unsafe { std::slice::from_raw_parts(start.cast(), len) }),
    }
}

/// Room that a call is given.
fn room<'a>(start: *mut c_void, len: size_t) -> Result<&'a mut [u8]> {
    match (start.is_null(), len) {
        (_, 0) => Ok(&mut []),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller of the system call owns `len` bytes there and lends them to us until we return.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(start.cast(), len) }),
    }
}

/// The parts of a message, of which Linux takes as many as of a vector, but says so in another way.
fn message_parts<'a>(message: &msghdr) -> Result<&'a [iovec]> {
    if message.msg_iovlen > PARTS {
        return Err(Errno(libc::EMSGSIZE));
    }
    vector(message.msg_iov, message.msg_iovlen)
}

/// The parts of a vector.
fn vector<'a>(parts: *const iovec, n: usize) -> Result<&'a [iovec]> {
    if n > PARTS {
        return Err(INVALID);
    }
    match (parts.is_null(), n) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(Errno(libc::EFAULT)),
        // SAFETY: the caller of the system call owns `n` of them there, and waits for us.
        _ => Ok(unsafe { std::slice::from_raw_parts(parts, n) }),
    }
}

fn rooms<'a>(parts: &[iovec]) -> Result<Vec<&'a mut [u8]>> {
    parts.iter().map(|part| room(part.iov_base, part.iov_len)).collect()
}

fn joined(parts: &[iovec]) -> Result<Vec<u8>> {
    let slices: Result<Vec<&[u8]>> = parts.iter().map(|part| bytes(part.iov_base, part.iov_len)).collect();
    Ok(slices?.concat())
}

fn family(start: *const sockaddr, len: socklen_t) -> Result<c_int> {
    let bytes = bytes(start.cast(), len as usize)?;
    let family = bytes.get(..2).and_then(|bytes| bytes.try_into().ok()).ok_or(INVALID)?;
    Ok(u16::from_ne_bytes(family).into())
}

fn address(start: *const sockaddr, len: socklen_t) -> Result<SocketAddr> {
    let family = family(start, len)?;
    let bytes = bytes(start.cast(), len as usize)?;
    let part = |from: usize, n: usize| bytes.get(from..from + n).ok_or(INVALID);
    let port = u16::from_be_bytes(part(2, 2)?.try_into().map_err(|_| INVALID)?);
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = part(4, 4)?.try_into().map_err(|_| INVALID)?;
            Ok(SocketAddr::new(Ipv4Addr::from(octets).into(), port))
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = part(8, 16)?.try_into().map_err(|_| INVALID)?;
            Ok(SocketAddr::new(Ipv6Addr::from(octets).into(), port))
        }
        // As Linux takes it where old programs left the family out.
        libc::AF_UNSPEC => Ok(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0)),
        _ => Err(Errno(libc::EAFNOSUPPORT)),
    }
}

/// Writes an address as far as there is room, and its whole length.
fn give_address(to: SocketAddr, start: *mut sockaddr, len: *mut socklen_t) -> Result<()> {
    if start.is_null() || len.is_null() {
        return Ok(());
    }
    let mut all = [0u8; 28];
    let family = if to.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    all[..2].copy_from_slice(&u16::try_from(family).unwrap_or_default().to_ne_bytes());
    all[2..4].copy_from_slice(&to.port().to_be_bytes());
    let whole: socklen_t = match to {
        SocketAddr::V4(v4) => {
            all[4..8].copy_from_slice(&v4.ip().octets());
            16
        }
        SocketAddr::V6(v6) => {
            all[8..24].copy_from_slice(&v6.ip().octets());
            28
        }
    };
    // SAFETY: not null, and the caller of the system call lends it to us until we return.
    let len = unsafe { &mut *len };
    let room = room(start.cast(), (*len).min(whole) as usize)?;
    room.copy_from_slice(&all[..room.len()]);
    *len = whole;
    Ok(())
}

extern "C" fn socket(data: Data, domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    answer(shared(data).with(|machine| machine.socket(domain, kind, protocol)))
}

extern "C" fn bind(data: Data, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    done(address(to, len).and_then(|to| shared(data).with(|machine| machine.bind(fd, to))))
}

extern "C" fn listen(data: Data, fd: c_int, backlog: c_int) -> c_int {
    done(shared(data).with(|machine| machine.listen(fd, backlog)))
}

extern "C" fn accept(data: Data, fd: c_int, to: *mut sockaddr, len: *mut socklen_t) -> c_int {
    let accepted = shared(data).call(Patience::of(fd, 0, false), |machine| machine.accept(fd));
    answer(accepted.and_then(|(new, peer)| give_address(peer, to, len).map(|()| new)))
}

extern "C" fn connect(data: Data, fd: c_int, to: *const sockaddr, len: socklen_t) -> c_int {
    let connect = || {
        let shared = shared(data);
        if family(to, len)? == libc::AF_UNSPEC {
            return shared.with(|machine| machine.disconnect(fd));
        }
        let to = address(to, len)?;
        let (begun, id) = shared.with(|machine| (machine.connect(fd, to), machine.connection(fd)));
        let (Err(Errno(libc::EINPROGRESS | libc::EALREADY)), Some(id)) = (begun, id) else { return begun };
        match shared.call(Patience::of(fd, 0, true), |machine| machine.connecting(fd, id)) {
            // Nobody waits, or the time is over.
            Err(AGAIN) => begun,
            result => result,
        }
    };
    done(connect())
}

fn receive(data: Data, fd: c_int, parts: &[iovec], flags: c_int) -> Result<Received> {
    let mut rooms = rooms(parts)?;
    let mut done = 0;
    let call = |machine: &mut Machine| machine.receive(fd, &mut rooms, flags, &mut done);
    // Linux never waits for an urgent byte.
    let waits = if flags & libc::MSG_OOB != 0 { flags | libc::MSG_DONTWAIT } else { flags };
    match shared(data).call(Patience::of(fd, waits, false), call) {
        // Nobody waits for more, or not any longer.
        Err(_) if done > 0 => Ok(Received::bytes(done)),
        result => result,
    }
}

fn deliver(data: Data, fd: c_int, bytes: &[u8], flags: c_int, to: Option<SocketAddr>) -> Result<ssize_t> {
    let sent = shared(data).send_all(fd, (bytes, flags), to)?;
    if sent > 0 {
        shared(data).with(|machine| machine.note_send(fd, flags));
    }
    Ok(count(sent))
}

extern "C" fn read(data: Data, fd: c_int, start: *mut c_void, len: size_t) -> ssize_t {
    recv(data, fd, start, len, 0)
}

extern "C" fn readv(data: Data, fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
    let parts = usize::try_from(n).map_err(|_| INVALID).and_then(|n| vector(parts, n));
    answer(parts.and_then(|parts| receive(data, fd, parts, 0)).map(|received| count(received.n)))
}

extern "C" fn recv(data: Data, fd: c_int, start: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
    recvfrom(data, fd, start, len, flags, std::ptr::null_mut(), std::ptr::null_mut())
}

extern "C" fn recvfrom(
    data: Data,
    fd: c_int,
    start: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> ssize_t {
    let part = iovec { iov_base: start, iov_len: len };
    let result = receive(data, fd, &[part], flags);
    answer(result.and_then(|received| {
        received.source.map_or(Ok(()), |source| give_address(source, from, from_len))?;
        Ok(count(received.n))
    }))
}

extern "C" fn recvmsg(data: Data, fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, and the caller of the system call lends it to us until we return.
    let message = unsafe { &mut *message };
    let parts = message_parts(message);
    let result = parts.and_then(|parts| receive(data, fd, parts, flags));
    let Ok(mut received) = result else { return answer(result.map(|received| count(received.n))) };
    let asks = flags & libc::MSG_ERRQUEUE == 0;
    let left = if asks { shared(data).with(|machine| machine.left_to_read(fd)) } else { None };
    received.controls.extend(left.map(|left| {
        let data = left.to_ne_bytes().to_vec();
        Control { level: libc::IPPROTO_TCP, kind: TCP_INQ, data }
    }));
    let place = room(message.msg_control, message.msg_controllen).unwrap_or_default();
    let (used, cut) = put_controls(&received.controls, place);
    message.msg_controllen = used;
    message.msg_flags = received.flags | if cut { libc::MSG_CTRUNC } else { 0 };
    let mut len = message.msg_namelen;
    let told = received.source.map(|source| give_address(source, message.msg_name.cast(), &raw mut len));
    message.msg_namelen = if received.source.is_none() || message.msg_name.is_null() { 0 } else { len };
    answer(told.unwrap_or(Ok(())).map(|()| count(received.n)))
}

extern "C" fn write(data: Data, fd: c_int, start: *const c_void, len: size_t) -> ssize_t {
    send(data, fd, start, len, 0)
}

extern "C" fn writev(data: Data, fd: c_int, parts: *const iovec, n: c_int) -> ssize_t {
    let parts = usize::try_from(n).map_err(|_| INVALID).and_then(|n| vector(parts, n));
    answer(parts.and_then(joined).and_then(|bytes| deliver(data, fd, &bytes, 0, None)))
}

extern "C" fn send(data: Data, fd: c_int, start: *const c_void, len: size_t, flags: c_int) -> ssize_t {
    answer(bytes(start, len).and_then(|bytes| deliver(data, fd, bytes, flags, None)))
}

extern "C" fn sendto(
    data: Data,
    fd: c_int,
    start: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> ssize_t {
    let to = if to.is_null() { Ok(None) } else { address(to, to_len).map(Some) };
    let result = bytes(start, len).and_then(|bytes| deliver(data, fd, bytes, flags, to?));
    answer(result)
}

extern "C" fn sendmsg(data: Data, fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    if message.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, and the caller of the system call lends it to us until we return.
    let message = unsafe { &*message };
    let to = match message.msg_name.is_null() {
        true => Ok(None),
        false => address(message.msg_name.cast_const().cast(), message.msg_namelen).map(Some),
    };
    let bytes = message_parts(message).and_then(joined);
    answer(bytes.and_then(|bytes| deliver(data, fd, &bytes, flags, to?)))
}

extern "C" fn fcntl(data: Data, fd: c_int, command: c_int, argument: c_long) -> c_int {
    // In C it is an int or nothing at all; the upper half of the register is anything.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    let argument = argument as i32;
    answer(shared(data).with(|machine| machine.fcntl(fd, command, argument)))
}

extern "C" fn ioctl(data: Data, fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int {
    let request = request & 0xffff_ffff;
    let reads = request == libc::FIONBIO;
    if argument.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, and for the requests that are known an int, which the caller of the system call lends to us.
    let given = if reads { unsafe { argument.read() } } else { 0 };
    let result = shared(data).with(|machine| machine.ioctl(fd, request, given));
    answer(result.map(|number| {
        if let Some(number) = number {
            // SAFETY: as above.
            unsafe { argument.write(number) };
        }
        0
    }))
}

extern "C" fn close(data: Data, fd: c_int) -> c_int {
    let shared = shared(data);
    let lingers = |machine: &Machine| match machine.sockets.get(fd) {
        // Linux waits for that also where nothing else does.
        Ok(socket) => {
            let time = socket.options.linger.filter(|time| !time.is_zero());
            time.map_or(Patience::None, |time| Patience::Until(machine.now + time))
        }
        Err(_) => Patience::None,
    };
    if shared.with(|machine| lingers(machine) != Patience::None) {
        // When the time is over, what is left goes on without the program.
        shared.call(lingers, |machine| machine.linger(fd)).ok();
    }
    done(shared.with(|machine| machine.close(fd)))
}

extern "C" fn shutdown(data: Data, fd: c_int, how: c_int) -> c_int {
    done(shared(data).with(|machine| machine.shutdown(fd, how)))
}

extern "C" fn get_option(
    data: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if len.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, and the caller of the system call lends it to us until we return.
    let len = unsafe { &mut *len };
    let option = shared(data).with(|machine| machine.option(fd, level, name));
    done(option.and_then(|bytes| {
        let mut bytes = bytes;
        // Programs that know of more fields than we do find them zero.
        if level == libc::IPPROTO_TCP && name == libc::TCP_INFO {
            bytes.resize(bytes.len().max((*len as usize).min(4096)), 0);
        }
        let n = bytes.len().min(*len as usize);
        room(value, n)?.copy_from_slice(&bytes[..n]);
        *len = socklen_t::try_from(n).unwrap_or(socklen_t::MAX);
        Ok(())
    }))
}

extern "C" fn set_option(
    data: Data,
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let bytes = bytes(value, len as usize);
    done(bytes.and_then(|bytes| shared(data).with(|machine| machine.set_option(fd, level, name, bytes))))
}

extern "C" fn poll(data: Data, fds: *mut pollfd, n: libc::nfds_t, timeout: c_int) -> c_int {
    let count = usize::try_from(n).unwrap_or(usize::MAX);
    if count > 4096 || (fds.is_null() && count > 0) {
        return answer(Err(INVALID));
    }
    // SAFETY: the caller of the system call owns `n` of them there and lends them to us until we return.
    let fds = if count == 0 { &mut [][..] } else { unsafe { std::slice::from_raw_parts_mut(fds, count) } };
    let wanted: Vec<(i32, i16)> = fds.iter().map(|fd| (fd.fd, fd.events)).collect();
    let result = match shared(data).call(Patience::millis(timeout), |machine| machine.poll(&wanted)) {
        Err(AGAIN) => Ok((0, vec![0; count])),
        result => result,
    };
    answer(result.map(|(n, bits)| {
        for (fd, bits) in fds.iter_mut().zip(bits) {
            fd.revents = bits;
        }
        c_int::try_from(n).unwrap_or(c_int::MAX)
    }))
}

extern "C" fn netdev_send(data: Data, start: *const c_void, len: size_t) -> c_int {
    done(bytes(start, len).map(|bytes| shared(data).with(|machine| machine.inject(bytes))))
}

extern "C" fn netdev_receive(
    data: Data,
    start: *mut c_void,
    len: *mut size_t,
    time: *mut c_longlong,
) -> c_int {
    if len.is_null() || time.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: not null, and packetdrill lends both to us until we return.
    let (len, time) = unsafe { (&mut *len, &mut *time) };
    // Nothing will ever be sent: a packet of no bytes ends the script, where -1 would be asked again for ever.
    let (at, packet) = shared(data).sent().unwrap_or_default();
    let n = packet.len().min(*len);
    done(room(start, n).map(|room| {
        room.copy_from_slice(&packet[..n]);
        *len = n;
        *time = c_longlong::try_from(at.as_micros()).unwrap_or(c_longlong::MAX);
    }))
}

extern "C" fn usleep(data: Data, micros: c_uint) -> c_int {
    shared(data).sleep_for(Duration::from_micros(micros.into()));
    0
}

extern "C" fn gettimeofday(data: Data, to: *mut timeval, _zone: *mut c_void) -> c_int {
    let time = shared(data).time();
    if !to.is_null() {
        let seconds = i64::try_from(time.as_secs()).unwrap_or(i64::MAX);
        let value = timeval { tv_sec: seconds, tv_usec: time.subsec_micros().into() };
        // SAFETY: not null, and the caller lends it to us until we return.
        unsafe { to.write(value) };
    }
    0
}

extern "C" fn epoll_create(data: Data, size: c_int) -> c_int {
    answer(if size > 0 { shared(data).with(Machine::epoll_create) } else { Err(INVALID) })
}

extern "C" fn epoll_ctl(
    data: Data,
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if event.is_null() && operation != libc::EPOLL_CTL_DEL {
        return answer(Err(Errno(libc::EFAULT)));
    }
    // SAFETY: the caller of the system call lends it to us until we return.
    let event = if event.is_null() { epoll_event { events: 0, u64: 0 } } else { unsafe { event.read() } };
    let wanted = (event.events, event.u64);
    done(shared(data).with(|machine| machine.epoll_control(epoll, operation, fd, wanted)))
}

extern "C" fn epoll_wait(
    data: Data,
    epoll: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    let Some(most) = usize::try_from(most).ok().filter(|most| (1..=4096).contains(most)) else {
        return answer(Err(INVALID));
    };
    if events.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    let result = match shared(data).call(Patience::millis(timeout), |machine| machine.epoll_wait(epoll, most))
    {
        Err(AGAIN) => Ok(Vec::new()),
        result => result,
    };
    answer(result.map(|found| {
        for (i, (bits, data)) in found.iter().enumerate() {
            // SAFETY: `epoll_wait` above gives at most `most`, and the caller lends so many to us until we return.
            unsafe { events.add(i).write(epoll_event { events: *bits, u64: *data }) };
        }
        c_int::try_from(found.len()).unwrap_or(c_int::MAX)
    }))
}

extern "C" fn pipe(data: Data, ends: *mut c_int) -> c_int {
    if ends.is_null() {
        return answer(Err(Errno(libc::EFAULT)));
    }
    done(shared(data).with(Machine::pipe).map(|(read, write)| {
        // SAFETY: not null, and the caller of the system call lends two numbers to us until we return.
        unsafe { ends.cast::<[c_int; 2]>().write([read, write]) };
    }))
}

extern "C" fn splice(
    data: Data,
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    // Neither sockets nor pipes have places. packetdrill says "none" with a pointer to zero.
    // SAFETY: not null, so the caller of the system call lends one to us until we return.
    let given = |at: *mut loff_t| !at.is_null() && unsafe { at.read() } != 0;
    if given(from_at) || given(to_at) {
        return answer(Err(Errno(libc::ESPIPE)));
    }
    let flags = if flags & libc::SPLICE_F_NONBLOCK != 0 { libc::MSG_DONTWAIT } else { 0 };
    let call = |machine: &mut Machine| machine.splice(from, to, len);
    answer(shared(data).call(Patience::of(from, flags, false), call).map(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_parts_are_too_long_a_message_and_no_vector() {
        // SAFETY: a `msghdr` is numbers and pointers, which may be null.
        let mut message: msghdr = unsafe { std::mem::zeroed() };
        message.msg_iovlen = PARTS + 1;
        assert_eq!(message_parts(&message).err(), Some(Errno(libc::EMSGSIZE)));
        assert_eq!(vector(message.msg_iov, message.msg_iovlen).err(), Some(INVALID));
    }
}
