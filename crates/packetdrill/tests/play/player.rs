//! Playing a script as packetdrill does: `dlopen`, the virtual clock, calls that wait on a second thread.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use bywash_packetdrill::Interface;
use bywash_wire::checksum::Sum;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{IcmpHeader, Ipv4Header, TcpFlags, TcpHeader, TcpOptions};

use crate::expression;
use crate::message;
use crate::script::{Event, Icmp, Packet, What, integer, parse};

/// packetdrill's own tolerance.
const TOLERANCE: Duration = Duration::from_millis(4);
const LOCAL: [u8; 4] = [192, 168, 17, 4];
const REMOTE: [u8; 4] = [192, 0, 2, 1];
const SERVER: u16 = 8080;
const CLIENT: u16 = 40_001;
const FLAGS: [(char, TcpFlags); 6] = [
    ('F', TcpFlags::FIN),
    ('S', TcpFlags::SYN),
    ('R', TcpFlags::RST),
    ('P', TcpFlags::PSH),
    ('U', TcpFlags::URG),
    ('.', TcpFlags::ACK),
];

/// The plug-in, which any thread may call.
#[derive(Clone, Copy)]
struct Plugin(Interface, Sendfile);

/// What packetdrill asks the C library for.
type Sendfile = unsafe extern "C" fn(c_int, c_int, *mut libc::off_t, libc::size_t) -> libc::ssize_t;

// SAFETY: packetdrill calls it from two threads; that this works is what is tested. The pointer in it is the plug-in's.
unsafe impl Send for Plugin {}

struct Waiting {
    done: mpsc::Receiver<(i64, i32, Duration)>,
    expected: (i64, Option<String>),
    until: Duration,
    text: String,
}

struct Player {
    plugin: Plugin,
    begin: Duration,
    /// The script's numbers of files, and ours.
    files: HashMap<i64, c_int>,
    /// Where our numbers begin, once they were seen.
    first: u32,
    /// Our ports, local and remote.
    ports: (u16, u16),
    /// The script's clock values, and ours.
    clocks: HashMap<u32, u32>,
    waiting: Option<Waiting>,
}

pub(crate) fn play(library: &Path, text: &str) -> Result<(), String> {
    // SAFETY: our own library, whose initialisers are Rust's.
    let library = unsafe { libloading::Library::new(library) }.map_err(|error| error.to_string())?;
    let init = c"packetdrill_interface_init".to_bytes_with_nul();
    // SAFETY: the function has this type by packetdrill's packetdrill.h.
    let init: libloading::Symbol<'_, unsafe extern "C" fn(*const c_char, *mut Interface)> =
        unsafe { library.get(init) }.map_err(|error| error.to_string())?;
    let mut filled = std::mem::MaybeUninit::<Interface>::uninit();
    // SAFETY: the flags end with a zero, and there is room for the interface, which is filled in.
    let interface = unsafe {
        init(c"sysctls=fixed,local=192.168.17.4".as_ptr(), filled.as_mut_ptr());
        filled.assume_init()
    };
    // SAFETY: sendfile(2).
    let sendfile = unsafe { library.get::<Sendfile>(c"sendfile".to_bytes_with_nul()) };
    let plugin = Plugin(interface, *sendfile.map_err(|error| error.to_string())?);
    let mut player = Player {
        plugin,
        begin: plugin.now(),
        files: HashMap::new(),
        first: 0,
        ports: (SERVER, CLIENT),
        clocks: HashMap::new(),
        waiting: None,
    };
    let result = player.run(&parse(text)?);
    if result.is_err() {
        // A thread may still wait in there: what it uses must stay.
        std::mem::forget(library);
        return result;
    }
    (interface.free)(interface.userdata);
    result
}

impl Plugin {
    fn now(self) -> Duration {
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        (self.0.gettimeofday)(self.0.userdata, &raw mut time, std::ptr::null_mut());
        Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
    }
}

impl Player {
    fn run(&mut self, events: &[Event]) -> Result<(), String> {
        for (i, event) in events.iter().enumerate() {
            let failed = |error: String| format!("event {} ({:?}): {error}", i + 1, event.what);
            let now = self.plugin.now() - self.begin;
            let at = now + event.when.after;
            if !matches!(event.what, What::Out(_)) {
                self.sleep_until(at);
            }
            match &event.what {
                What::Call { name, arguments, result, errno } => {
                    let until = event.when.until.map(|until| now + until);
                    self.call(name, arguments, (*result, errno.clone()), until).map_err(failed)?;
                }
                What::In(packet) => self.inject(packet),
                What::Out(packet) => {
                    let latest = event.when.until.map_or(at, |until| now + until);
                    self.expect(packet, at, latest).map_err(failed)?;
                }
                What::Code(code) => self.check(code).map_err(failed)?,
            }
            self.collect(false)?;
        }
        self.sleep_until(self.plugin.now() - self.begin + Duration::from_millis(1));
        self.collect(true)
    }

    /// As packetdrill's wait_for_event: most of the time asleep, the rest by looking at the clock.
    fn sleep_until(&self, at: Duration) {
        let at = self.begin + at;
        let now = self.plugin.now();
        let asleep = at.saturating_sub(now).saturating_sub(Duration::from_micros(20));
        let interface = &self.plugin.0;
        (interface.usleep)(interface.userdata, u32::try_from(asleep.as_micros()).unwrap_or(u32::MAX));
        for _ in 0..1000 {
            if self.plugin.now() >= at {
                return;
            }
        }
        panic!("the virtual clock stands still");
    }

    /// Looks whether the call that waits has come back.
    fn collect(&mut self, must: bool) -> Result<(), String> {
        let Some(waiting) = self.waiting.take() else { return Ok(()) };
        let got = if must {
            waiting.done.recv_timeout(Duration::from_secs(5)).ok()
        } else {
            waiting.done.recv_timeout(Duration::from_millis(1)).ok()
        };
        let Some((result, errno, at)) = got else {
            if must {
                return Err(format!("{} never comes back", waiting.text));
            }
            self.waiting = Some(waiting);
            return Ok(());
        };
        let at = at - self.begin;
        if at.abs_diff(waiting.until) > TOLERANCE {
            return Err(format!("{} came back at {at:?}, not {:?}", waiting.text, waiting.until));
        }
        self.compare(&waiting.text, (result, errno), &waiting.expected)
    }

    fn compare(
        &mut self,
        name: &str,
        (result, errno): (i64, i32),
        (expected, error): &(i64, Option<String>),
    ) -> Result<(), String> {
        let gives_file = matches!(name, "socket" | "accept" | "open" | "epoll_create");
        if gives_file && *expected >= 0 && result >= 0 {
            let fd = c_int::try_from(result).map_err(|_| "a strange number")?;
            self.files.insert(*expected, fd);
            return Ok(());
        }
        let right = error.as_ref().is_none_or(|error| self.symbol(error) == Some(errno.into()));
        if result == *expected && right {
            Ok(())
        } else {
            Err(format!("{name} gave {result}, errno {errno}"))
        }
    }

    fn call(
        &mut self,
        name: &str,
        arguments: &[String],
        expected: (i64, Option<String>),
        until: Option<Duration>,
    ) -> Result<(), String> {
        let prepared = self.prepare(name, arguments)?;
        let plugin = self.plugin;
        let Some(until) = until else {
            let (result, errno) = perform(plugin, prepared)?;
            return self.compare(name, (result, errno), &expected);
        };
        let (sender, done) = mpsc::channel();
        let (started, tid) = mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: gettid has no conditions.
            started.send(unsafe { libc::gettid() }).ok();
            let (result, errno) = perform(plugin, prepared).unwrap_or((-2, 0));
            sender.send((result, errno, plugin.now())).ok();
        });
        let tid = tid.recv().map_err(|error| error.to_string())?;
        self.waiting = Some(Waiting { done, expected, until, text: name.to_owned() });
        // As packetdrill: on until the thread sleeps, or is done.
        for _ in 0..100_000 {
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat"));
            if !stat.is_ok_and(|stat| stat.contains(") R ")) {
                break;
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A call with its arguments as numbers and bytes.
#[derive(Default)]
struct Prepared {
    name: String,
    numbers: Vec<i64>,
    bytes: Vec<u8>,
    polls: Vec<(libc::pollfd, i16)>,
    message: Option<message::Message>,
}

impl Player {
    fn symbol(&self, word: &str) -> Option<i64> {
        let symbol = match word {
            "SOCK_STREAM" => libc::SOCK_STREAM,
            "IPPROTO_TCP" => libc::IPPROTO_TCP,
            "IPPROTO_IP" => libc::IPPROTO_IP,
            "SOL_SOCKET" => libc::SOL_SOCKET,
            "SO_REUSEADDR" => libc::SO_REUSEADDR,
            "SO_KEEPALIVE" => libc::SO_KEEPALIVE,
            "SO_LINGER" => libc::SO_LINGER,
            "SO_ERROR" => libc::SO_ERROR,
            "IP_TOS" => libc::IP_TOS,
            "IP_TTL" => libc::IP_TTL,
            "TCP_NODELAY" => libc::TCP_NODELAY,
            "TCP_CORK" => libc::TCP_CORK,
            "TCP_DEFER_ACCEPT" => libc::TCP_DEFER_ACCEPT,
            "TCP_NOTSENT_LOWAT" => 25,
            "SO_SNDBUF" => libc::SO_SNDBUF,
            "TCP_MAXSEG" => libc::TCP_MAXSEG,
            "TCP_SYNCNT" => libc::TCP_SYNCNT,
            "TCP_QUICKACK" => libc::TCP_QUICKACK,
            "TCP_KEEPIDLE" => libc::TCP_KEEPIDLE,
            "TCP_KEEPINTVL" => libc::TCP_KEEPINTVL,
            "TCP_KEEPCNT" => libc::TCP_KEEPCNT,
            "TCP_USER_TIMEOUT" => libc::TCP_USER_TIMEOUT,
            "F_GETFL" => libc::F_GETFL,
            "F_SETFL" => libc::F_SETFL,
            "O_RDWR" => libc::O_RDWR,
            "O_RDONLY" => libc::O_RDONLY,
            "O_NONBLOCK" => libc::O_NONBLOCK,
            "SHUT_WR" => libc::SHUT_WR,
            "MSG_PEEK" => libc::MSG_PEEK,
            "MSG_WAITALL" => libc::MSG_WAITALL,
            "MSG_DONTWAIT" => libc::MSG_DONTWAIT,
            "SO_RCVBUF" => libc::SO_RCVBUF,
            "SO_RCVLOWAT" => libc::SO_RCVLOWAT,
            "MSG_OOB" => libc::MSG_OOB,
            "POLLPRI" => libc::POLLPRI.into(),
            "EINVAL" => libc::EINVAL,
            "MSG_MORE" => libc::MSG_MORE,
            "MSG_EOR" => libc::MSG_EOR,
            "MSG_ZEROCOPY" => libc::MSG_ZEROCOPY,
            "SO_ZEROCOPY" => libc::SO_ZEROCOPY,
            "SO_EE_ORIGIN_ZEROCOPY" => 5,
            "SO_EE_CODE_ZEROCOPY_COPIED" => 1,
            "SOL_IP" => libc::IPPROTO_IP,
            "SO_TIMESTAMPING" | "SCM_TIMESTAMPING" => libc::SO_TIMESTAMPING,
            "SOF_TIMESTAMPING_TX_SCHED" => libc::SOF_TIMESTAMPING_TX_SCHED.cast_signed(),
            "SOF_TIMESTAMPING_TX_SOFTWARE" => libc::SOF_TIMESTAMPING_TX_SOFTWARE.cast_signed(),
            "SOF_TIMESTAMPING_TX_ACK" => libc::SOF_TIMESTAMPING_TX_ACK.cast_signed(),
            "SOF_TIMESTAMPING_SOFTWARE" => libc::SOF_TIMESTAMPING_SOFTWARE.cast_signed(),
            "SOF_TIMESTAMPING_OPT_ID" => libc::SOF_TIMESTAMPING_OPT_ID.cast_signed(),
            "SOF_TIMESTAMPING_OPT_TSONLY" => libc::SOF_TIMESTAMPING_OPT_TSONLY.cast_signed(),
            "SO_EE_ORIGIN_TIMESTAMPING" => 4,
            "SCM_TSTAMP_SND" => 0,
            "SCM_TSTAMP_SCHED" => 1,
            "SCM_TSTAMP_ACK" => 2,
            "MSG_TRUNC" => libc::MSG_TRUNC,
            "ENOMSG" => libc::ENOMSG,
            "IP_RECVERR" => libc::IP_RECVERR,
            "TCP_FASTOPEN" => libc::TCP_FASTOPEN,
            "MSG_FASTOPEN" => libc::MSG_FASTOPEN,
            "MSG_ERRQUEUE" => libc::MSG_ERRQUEUE,
            "SIOCINQ" => 0x541b,
            "POLLIN" => libc::POLLIN.into(),
            "POLLOUT" => libc::POLLOUT.into(),
            "POLLERR" => libc::POLLERR.into(),
            "POLLHUP" => libc::POLLHUP.into(),
            "POLLRDHUP" => libc::POLLRDHUP.into(),
            "EPOLL_CTL_ADD" => libc::EPOLL_CTL_ADD,
            "EPOLL_CTL_MOD" => libc::EPOLL_CTL_MOD,
            "EPOLLIN" => libc::EPOLLIN,
            "EPOLLOUT" => libc::EPOLLOUT,
            "EPOLLERR" => libc::EPOLLERR,
            "EPOLLHUP" => libc::EPOLLHUP,
            "EPOLLRDHUP" => libc::EPOLLRDHUP,
            "EPOLLET" => libc::EPOLLET,
            "EPOLLONESHOT" => libc::EPOLLONESHOT,
            "AF_UNSPEC" => libc::AF_UNSPEC,
            "EAGAIN" => libc::EAGAIN,
            "EOPNOTSUPP" => libc::EOPNOTSUPP,
            "EALREADY" => libc::EALREADY,
            "EINPROGRESS" => libc::EINPROGRESS,
            "EISCONN" => libc::EISCONN,
            "ENETUNREACH" => libc::ENETUNREACH,
            "EHOSTUNREACH" => libc::EHOSTUNREACH,
            "ENOPROTOOPT" => libc::ENOPROTOOPT,
            "ECONNABORTED" => libc::ECONNABORTED,
            "ECONNREFUSED" => libc::ECONNREFUSED,
            "ENOTCONN" => libc::ENOTCONN,
            "ECONNRESET" => libc::ECONNRESET,
            "ETIMEDOUT" => libc::ETIMEDOUT,
            "EPIPE" => libc::EPIPE,
            _ => return integer(word),
        };
        Some(symbol.into())
    }

    fn number(&self, text: &str) -> Result<i64, String> {
        text.trim_matches(['[', ']']).split('|').try_fold(0, |bits, word| {
            Ok(bits | self.symbol(word.trim()).ok_or_else(|| format!("what is {word}?"))?)
        })
    }

    fn prepare(&self, name: &str, arguments: &[String]) -> Result<Prepared, String> {
        let mut prepared = Prepared { name: name.to_owned(), ..Prepared::default() };
        for (i, argument) in arguments.iter().enumerate() {
            let number = if argument == "..." {
                -1
            } else if argument.starts_with('"') {
                prepared.bytes.extend(argument.trim_matches('"').bytes().chain([0]));
                0
            } else if argument.starts_with("{msg_name") {
                let number = |text: &str| self.number(text);
                prepared.message = Some(message::Message::parse(argument, self.begin, number)?);
                0
            } else if let Some(linger) = argument.strip_prefix('{') {
                for part in linger.trim_end_matches('}').split(',') {
                    let (_, value) = part.split_once('=').ok_or("no value")?;
                    let value = i32::try_from(self.number(value)?).map_err(|_| "too much")?;
                    prepared.bytes.extend(value.to_ne_bytes());
                }
                0
            } else if argument.starts_with("[{") {
                let mut fields = [0i64; 3];
                for (field, part) in
                    fields.iter_mut().zip(argument.trim_matches(['[', ']', '{', '}']).split(','))
                {
                    *field = self.number(part.split_once('=').ok_or("no value")?.1)?;
                }
                let fd = *self.files.get(&fields[0]).ok_or("no such file")?;
                let bits = |n: i64| i16::try_from(n).map_err(|_| "too many bits");
                let poll = libc::pollfd { fd, events: bits(fields[1])?, revents: 0 };
                prepared.polls.push((poll, bits(fields[2])?));
                0
            } else {
                let number = self.number(argument)?;
                let is_file = match i {
                    0 => !matches!(name, "socket" | "open" | "epoll_create"),
                    1 => name == "sendfile",
                    2 => name == "epoll_ctl",
                    _ => false,
                };
                if is_file { (*self.files.get(&number).ok_or("no such file")?).into() } else { number }
            };
            prepared.numbers.push(number);
        }
        Ok(prepared)
    }
}

fn perform(plugin: Plugin, mut call: Prepared) -> Result<(i64, i32), String> {
    let (ifc, data) = (&plugin.0, plugin.0.userdata);
    let int = |i: usize| call.numbers.get(i).and_then(|n| c_int::try_from(*n).ok()).unwrap_or(0);
    let size = |i: usize| usize::try_from(int(i)).unwrap_or(0);
    let mut buffer = vec![0u8; 1 << 16];
    let buffer_start = buffer.as_mut_ptr().cast::<c_void>();
    let mut address = socket_address(if call.name == "connect" { REMOTE } else { LOCAL });
    let (start, mut address_len) = (address.as_mut_ptr(), 16u32);
    let result: i64 = match call.name.as_str() {
        "socket" => (ifc.socket)(data, libc::AF_INET, int(1), int(2)).into(),
        "bind" => (ifc.bind)(data, int(0), start.cast(), 16).into(),
        "connect" => {
            if int(1) == libc::AF_UNSPEC {
                address = [0; 16];
            }
            (ifc.connect)(data, int(0), address.as_ptr().cast(), 16).into()
        }
        "listen" => (ifc.listen)(data, int(0), int(1)).into(),
        "accept" => (ifc.accept)(data, int(0), start.cast(), &raw mut address_len).into(),
        "read" => (ifc.read)(data, int(0), buffer_start, size(2)) as i64,
        "recv" => (ifc.recv)(data, int(0), buffer_start, size(2), int(3)) as i64,
        "write" => (ifc.write)(data, int(0), buffer_start, size(2)) as i64,
        "send" => (ifc.send)(data, int(0), buffer_start, size(2), int(3)) as i64,
        "sendto" => {
            let to = socket_address(REMOTE);
            (ifc.sendto)(data, int(0), buffer_start, size(2), int(3), to.as_ptr().cast(), 16) as i64
        }
        "recvmsg" => {
            let message = call.message.take().ok_or("no message")?;
            message.receive(|header| (ifc.recvmsg)(data, int(0), header, int(2)) as i64)?
        }
        "close" => (ifc.close)(data, int(0)).into(),
        "shutdown" => (ifc.shutdown)(data, int(0), int(1)).into(),
        "fcntl" => (ifc.fcntl)(data, int(0), int(1), int(2).into()).into(),
        "ioctl" => {
            let mut got = 0;
            let request = int(1).unsigned_abs().into();
            let result = (ifc.ioctl)(data, int(0), request, &raw mut got);
            if got != int(2) {
                return Err(format!("ioctl gave {got}"));
            }
            result.into()
        }
        "setsockopt" => {
            let value =
                if call.bytes.is_empty() { int(3).to_ne_bytes().to_vec() } else { call.bytes.clone() };
            let len = u32::try_from(value.len()).unwrap_or(0);
            (ifc.setsockopt)(data, int(0), int(1), int(2), value.as_ptr().cast(), len).into()
        }
        "getsockopt" => {
            let (mut got, mut len) = (0i32, 4u32);
            let place = (&raw mut got).cast::<c_void>();
            let result = (ifc.getsockopt)(data, int(0), int(1), int(2), place, &raw mut len);
            if got != int(3) {
                return Err(format!("getsockopt gave {got}"));
            }
            result.into()
        }
        "epoll_create" => (ifc.epoll_create)(data, int(0)).into(),
        "epoll_ctl" => {
            let mut event = epoll_event(&call.bytes);
            (ifc.epoll_ctl)(data, int(0), int(1), int(2), &raw mut event).into()
        }
        "epoll_wait" => {
            let (expected, mut got) =
                (epoll_event(&call.bytes), [libc::epoll_event { events: 0, u64: 0 }; 8]);
            let result = (ifc.epoll_wait)(data, int(0), got.as_mut_ptr(), int(2), int(3));
            let (events, place) = (got[0].events, got[0].u64);
            if (events, place) != (expected.events, expected.u64) {
                return Err(format!("epoll_wait gave {result}, {events:#x} for {place}"));
            }
            result.into()
        }
        // SAFETY: the path ends with a zero.
        "open" => unsafe { libc::open(call.bytes.as_ptr().cast(), int(1)) }.into(),
        "sendfile" => {
            let mut at = i64::from(int(2));
            // SAFETY: there is a number to be read and written.
            let sent = unsafe { (plugin.1)(int(0), int(1), &raw mut at, size(3)) } as i64;
            if at != i64::from(int(2)) + sent {
                return Err(format!("the file is now at {at}"));
            }
            sent
        }
        "poll" => {
            let timeout = int(2);
            let mut polls: Vec<libc::pollfd> = call.polls.iter().map(|(poll, _)| *poll).collect();
            let result = (ifc.poll)(data, polls.as_mut_ptr(), polls.len() as u64, timeout);
            for (got, (_, expected)) in polls.iter().zip(&call.polls) {
                if got.revents != *expected {
                    return Err(format!("poll gave {:#x}", got.revents));
                }
            }
            result.into()
        }
        name => return Err(format!("what is {name}?")),
    };
    call.polls.clear();
    // SAFETY: the C library's errno of this thread.
    Ok((result, unsafe { *libc::__errno_location() }))
}

/// `{events=EPOLLIN, fd=4}`: what is told is the script's number.
fn epoll_event(bytes: &[u8]) -> libc::epoll_event {
    let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap());
    libc::epoll_event { events: word(0), u64: word(4).into() }
}

/// A `struct sockaddr_in`.
fn socket_address(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&u16::try_from(libc::AF_INET).unwrap().to_ne_bytes());
    bytes[2..4].copy_from_slice(&SERVER.to_be_bytes());
    bytes[4..8].copy_from_slice(&address);
    bytes
}

impl Player {
    fn check(&mut self, code: &str) -> Result<(), String> {
        self.collect(false)?;
        // The connection that is played on has the highest number.
        let fd = *self.files.iter().max_by_key(|(script, _)| **script).ok_or("no socket")?.1;
        let (mut bytes, mut len) = ([0u8; 512], 512u32);
        let (ifc, place) = (&self.plugin.0, bytes.as_mut_ptr().cast::<c_void>());
        let result =
            (ifc.getsockopt)(ifc.userdata, fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len);
        if result != 0 || len != 512 {
            return Err("TCP_INFO failed, or does not fill what it is given".into());
        }
        expression::holds(code, &expression::tcp_info(&bytes))
    }

    fn inject(&mut self, packet: &Packet) {
        let bytes = self.build(packet);
        let ifc = &self.plugin.0;
        assert_eq!((ifc.netdev_send)(ifc.userdata, bytes.as_ptr().cast(), bytes.len()), 0);
    }

    fn build(&self, packet: &Packet) -> Vec<u8> {
        let ports = (self.ports.1, self.ports.0);
        if let Some(Icmp(kind, code, mtu)) = packet.icmp {
            let ours = self.first.wrapping_add(packet.seq);
            let quoted = TcpHeader::new((ports.1, ports.0), ours, 0, TcpFlags::ACK, 0, 0);
            let length = u16::try_from(20 + packet.len).unwrap();
            let ip = Ipv4Header::new(LOCAL.into(), REMOTE.into(), 6, length);
            let mut message =
                [&[kind, code, 0, 0, 0, 0], &mtu.to_be_bytes()[..], ip.as_bytes(), quoted.as_bytes()]
                    .concat();
            assert_eq!(size_of::<IcmpHeader>(), 8, "type, code, checksum, and the MTU in the last two");
            let sum = Sum::new().bytes(&message).checksum();
            message[2..4].copy_from_slice(&sum.to_be_bytes());
            return headed(1, &message);
        }
        let flags = FLAGS.iter().filter(|(c, _)| packet.flags.contains(*c));
        let flags = flags.fold(TcpFlags::default(), |all, (_, flag)| all.with(*flag));
        let mut options = Vec::new();
        for option in &packet.options {
            let words: Vec<&str> = option.split([' ', ':']).collect();
            let number = |i: usize| words[i].parse::<u32>().unwrap();
            let ours = |n: u32| self.first.wrapping_add(n).to_be_bytes();
            match words[0] {
                "nop" => options.push(1),
                "mss" => options.extend([&[2, 4], &number(1).to_be_bytes()[2..]].concat()),
                "wscale" => options.extend([3, 3, number(1).to_be_bytes()[3]]),
                "sackOK" => options.extend([4, 2]),
                "TS" => {
                    let echo = self.clocks.get(&number(4)).copied().unwrap_or(number(4));
                    options.extend([&[8, 10][..], &number(2).to_be_bytes(), &echo.to_be_bytes()].concat());
                }
                "sack" => {
                    let blocks: Vec<[u8; 4]> = (1..words.len()).map(|i| ours(number(i))).collect();
                    options.extend([5, u8::try_from(2 + 4 * blocks.len()).unwrap()]);
                    options.extend(blocks.concat());
                }
                "FO" => {
                    let cookie = u32::from_str_radix(words[1], 16).unwrap();
                    options.extend([&[34, 6], &cookie.to_be_bytes()[..]].concat());
                }
                word => panic!("what is {word}?"),
            }
        }
        options.resize(options.len().next_multiple_of(4), 0);
        let ack = packet.ack.map_or(0, |ack| self.first.wrapping_add(ack));
        let window = packet.window.unwrap_or(0);
        let length = u8::try_from(options.len()).unwrap();
        let mut tcp = TcpHeader::new(ports, packet.seq, ack, flags, window, length);
        tcp.urgent = packet.urgent.into();
        let payload = vec![0x5a; packet.len as usize];
        let all = u32::try_from(20 + options.len() + payload.len()).unwrap();
        let sum = Sum::pseudo(&REMOTE, &LOCAL, 6, all).bytes(tcp.as_bytes()).bytes(&options).bytes(&payload);
        tcp.checksum = sum.checksum().into();
        headed(6, &[tcp.as_bytes(), &options, &payload].concat())
    }

    /// What is sent next is this, at this time; a long one may come in pieces.
    fn expect(&mut self, packet: &Packet, from: Duration, until: Duration) -> Result<(), String> {
        let mut got = 0;
        loop {
            let mut bytes = vec![0u8; 1 << 16];
            let (mut len, mut time) = (bytes.len(), 0i64);
            let ifc = &self.plugin.0;
            let result =
                (ifc.netdev_receive)(ifc.userdata, bytes.as_mut_ptr().cast(), &raw mut len, &raw mut time);
            if result != 0 || len == 0 {
                return Err("nothing was sent".into());
            }
            let at = Duration::from_micros(time.unsigned_abs()) - self.begin;
            if at + TOLERANCE < from || at > until + TOLERANCE {
                return Err(format!("sent at {at:?}, not {from:?}"));
            }
            got += self.compare_packet(packet, got, &bytes[..len])?;
            if got >= packet.len {
                return Ok(());
            }
        }
    }

    fn compare_packet(&mut self, expected: &Packet, before: u32, bytes: &[u8]) -> Result<u32, String> {
        let ip = Ipv4Header::parse(bytes, bytes.len()).map_err(|error| format!("{error:?}"))?;
        let segment = &bytes[ip.header_length()..];
        let tcp = TcpHeader::parse(segment).ok_or("no TCP")?;
        let len = u32::try_from(segment.len() - tcp.header_length()).map_err(|_| "too long")?;
        if tcp.flags.has(TcpFlags::SYN) {
            self.first = tcp.sequence.get();
            self.ports = (tcp.source_port.get(), tcp.destination_port.get());
        }
        let seq = tcp.sequence.get().wrapping_sub(self.first);
        let last = before + len == expected.len;
        let mut flags: String = FLAGS.iter().filter(|(_, f)| tcp.flags.has(*f)).map(|(c, _)| *c).collect();
        if !last {
            flags = expected.flags.clone();
        }
        let options = TcpOptions::parse(&segment[20..tcp.header_length()]);
        let mut wanted = expected.clone();
        wanted.options.retain(|option| option != "nop");
        let shown = self.show(&options, &wanted.options);
        let ack = tcp.flags.has(TcpFlags::ACK).then(|| tcp.acknowledgment.get());
        let tos = expected.tos.is_none_or(|tos| tos == ip.traffic_class);
        let ttl = expected.ttl.is_none_or(|ttl| ttl == ip.time_to_live);
        let same = flags == expected.flags
            && seq == expected.seq + before
            && before + len <= expected.len
            && ack == expected.ack
            && expected.window.is_none_or(|window| window == tcp.window.get())
            && tcp.urgent.get() == expected.urgent
            && shown == wanted.options
            && tos
            && ttl;
        if same { Ok(len) } else { Err(format!("sent {flags} {seq}:({len}) ack {ack:?} <{shown:?}>")) }
    }

    /// Options as scripts write them; a clock of ours gets the script's value, which then stands for it.
    fn show(&mut self, options: &TcpOptions, script: &[String]) -> Vec<String> {
        let mut shown = Vec::new();
        shown.extend(options.mss.map(|mss| format!("mss {mss}")));
        shown.extend(options.sack_permitted.then(|| "sackOK".to_owned()));
        if let Some((value, echo)) = options.timestamps {
            let ours = script.iter().find_map(|option| option.strip_prefix("TS val ")?.split(' ').next());
            let ours = ours.and_then(|value| value.parse().ok()).unwrap_or(0);
            self.clocks.insert(ours, value);
            shown.push(format!("TS val {ours} ecr {echo}"));
        }
        shown.extend(options.window_scale.map(|scale| format!("wscale {scale}")));
        shown.extend(options.fast_open.map(|option| match option.cookie {
            Some(cookie) => format!("FO {cookie:?}"),
            None => "FO".to_owned(),
        }));
        let blocks: Vec<String> = options.sack.iter().map(|(from, to)| format!("{from}:{to}")).collect();
        if !blocks.is_empty() {
            shown.push(format!("sack {}", blocks.join(" ")));
        }
        shown
    }
}

/// A packet to us with an IP header.
fn headed(protocol: u8, rest: &[u8]) -> Vec<u8> {
    let length = u16::try_from(rest.len()).unwrap();
    let ip = Ipv4Header::new(REMOTE.into(), LOCAL.into(), protocol, length);
    [ip.as_bytes(), rest].concat()
}
