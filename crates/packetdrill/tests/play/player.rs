//! Playing a script as packetdrill does: `dlopen`, the virtual clock, calls that wait on a second thread.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::mpsc;
use std::time::Duration;

use bywash_packetdrill::Interface;
use bywash_wire::zerocopy::IntoBytes;
use bywash_wire::{IcmpHeader, TcpFlags, TcpHeader, TcpOptions};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW, Symbol};

use crate::calls::{Outcome, Plugin, Prepared, Sendfile, perform};
use crate::expression;
use crate::message;
use crate::network::{Network, SERVER};
use crate::script::{Event, Icmp, Packet, What, icmp, parse};
use crate::symbols::symbol;

/// packetdrill's own tolerance.
const TOLERANCE: Duration = Duration::from_millis(4);
const CLIENT: u16 = 40_001;
const FLAGS: [(char, TcpFlags); 6] = [
    ('F', TcpFlags::FIN),
    ('S', TcpFlags::SYN),
    ('R', TcpFlags::RST),
    ('P', TcpFlags::PSH),
    ('U', TcpFlags::URG),
    ('.', TcpFlags::ACK),
];

struct Waiting {
    done: mpsc::Receiver<(Result<Outcome, String>, Duration)>,
    expected: (i64, Option<String>),
    until: Duration,
    text: String,
}

struct Player {
    plugin: Plugin,
    network: Network,
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

/// packetdrill's flags for `dlopen` (its `so_testing.c`): all names are looked up at once, and in the library itself first.
const HOW: c_int = RTLD_NOW | RTLD_LOCAL | libc::RTLD_NODELETE | libc::RTLD_DEEPBIND;

pub(crate) fn play(library: &Path, text: &str, network: Network) -> Result<(), String> {
    // SAFETY: our own library, whose initialisers are Rust's.
    let library = unsafe { Library::open(Some(library), HOW) }.map_err(|error| error.to_string())?;
    let init = c"packetdrill_interface_init".to_bytes_with_nul();
    // SAFETY: the function has this type by packetdrill's packetdrill.h.
    let init: Symbol<unsafe extern "C" fn(*const c_char, *mut Interface)> =
        unsafe { library.get(init) }.map_err(|error| error.to_string())?;
    let mut filled = std::mem::MaybeUninit::<Interface>::uninit();
    let flags = format!("sysctls=fixed,local={},mtu={}", network.local(), network.mtu());
    let flags = CString::new(flags).map_err(|error| error.to_string())?;
    // SAFETY: the flags end with a zero, and there is room for the interface, which is filled in.
    let interface = unsafe {
        init(flags.as_ptr(), filled.as_mut_ptr());
        filled.assume_init()
    };
    // SAFETY: sendfile(2).
    let sendfile = unsafe { library.get::<Sendfile>(c"sendfile".to_bytes_with_nul()) };
    let plugin = Plugin(interface, *sendfile.map_err(|error| error.to_string())?);
    let mut player = Player {
        plugin,
        network,
        begin: plugin.now(),
        files: HashMap::new(),
        first: 0,
        ports: (SERVER, CLIENT),
        clocks: HashMap::new(),
        waiting: None,
    };
    player.run(&parse(text)?)?;
    // A script that failed may have left a thread that still waits in there: what it uses stays.
    (interface.free)(interface.userdata);
    Ok(())
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
                What::In(packet) => self.inject(packet).map_err(failed)?,
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
        let Some((outcome, at)) = got else {
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
        self.compare(&waiting.text, outcome?, &waiting.expected)
    }

    fn compare(
        &mut self,
        name: &str,
        Outcome { result, errno, files }: Outcome,
        (expected, error): &(i64, Option<String>),
    ) -> Result<(), String> {
        self.files.extend(files);
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
        let (plugin, network) = (self.plugin, self.network);
        let Some(until) = until else {
            let outcome = perform(plugin, network, prepared)?;
            return self.compare(name, outcome, &expected);
        };
        let (sender, done) = mpsc::channel();
        let (started, tid) = mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: gettid has no conditions.
            started.send(unsafe { libc::gettid() }).ok();
            let outcome = perform(plugin, network, prepared);
            sender.send((outcome, plugin.now())).ok();
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

impl Player {
    fn symbol(&self, word: &str) -> Option<i64> {
        self.network.definition(word).map(i64::from).or_else(|| symbol(word))
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
            } else if argument.starts_with("[{...") {
                prepared.parts = message::parts(argument)?;
                0
            } else if name == "pipe" {
                let ends = argument.trim_matches(['[', ']']).split(',');
                let ends: Result<Vec<i64>, String> = ends.map(|end| self.number(end)).collect();
                prepared.ends = ends?;
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
                    2 => matches!(name, "epoll_ctl" | "splice"),
                    _ => false,
                };
                if is_file { (*self.files.get(&number).ok_or("no such file")?).into() } else { number }
            };
            prepared.numbers.push(number);
        }
        Ok(prepared)
    }
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

    fn inject(&mut self, packet: &Packet) -> Result<(), String> {
        let bytes = self.build(packet)?;
        let ifc = &self.plugin.0;
        assert_eq!((ifc.netdev_send)(ifc.userdata, bytes.as_ptr().cast(), bytes.len()), 0);
        Ok(())
    }

    fn build(&self, packet: &Packet) -> Result<Vec<u8>, String> {
        let ports = (self.ports.1, self.ports.0);
        if let Some(name) = &packet.icmp {
            let ours = self.first.wrapping_add(packet.seq);
            let quoted = TcpHeader::new((ports.1, ports.0), ours, 0, TcpFlags::ACK, 0, 0);
            let quoted = self.network.quoted(quoted.as_bytes(), 20 + packet.len as usize);
            let Icmp { kind, code, mtu } = icmp(name, self.network)?;
            assert_eq!(size_of::<IcmpHeader>(), 8, "type, code, checksum, and what the MTU is in");
            let message = [&[kind, code, 0, 0], &mtu.to_be_bytes()[..], &quoted].concat();
            let protocol = if self.network == Network::V6 { 58 } else { 1 };
            return Ok(self.network.packet(protocol, message, 2));
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
        let payload = vec![message::BYTE; packet.len as usize];
        Ok(self.network.packet(6, [tcp.as_bytes(), &options, &payload].concat(), 16))
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
        let ip = self.network.parse(bytes)?;
        let segment = ip.rest;
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
        let tos = expected.tos.is_none_or(|tos| tos == ip.class);
        let ttl = expected.ttl.is_none_or(|ttl| ttl == ip.limit);
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
