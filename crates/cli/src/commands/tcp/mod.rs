//! `bywash tcp`: servers and clients, on Bywash or on the kernel's sockets.

mod make;
mod run;
mod tally;

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use bywash_engine::scoped::ScopedEnd;
use bywash_programs::{Dialect, File, Manner};
use clap::{Subcommand, ValueEnum};

use super::serve::InstanceArgs;
use crate::failure::Failure;
use crate::options::{PortArgs, ReportArgs, WorkerArgs};
use crate::values;
use make::{ConnectMake, DownloadMake, HttpMake, LoadMake, StreamMake};
use run::{Links, run as start};

const EXAMPLES: &str = "\
Examples:
  bywash tcp http --port xdp:eth1 --addr 10.0.0.2/24           a web server on Bywash
  bywash tcp http --kernel --listen 8080 --file big.bin        the same on the kernel's sockets
  bywash tcp load http 10.0.0.2:80 --kernel --connections 64   as fast as answers come
  bywash tcp load redis 10.0.0.2:6379 --port xdp:eth1 --addr 10.0.0.1/24 --rate 100k
  bywash tcp upload --port xdp:eth1 --addr 10.0.0.2/24         a stream without end to all who connect
  bywash tcp download 10.0.0.2:19 --kernel --streams 4 --duration 10s
  bywash tcp connect 10.0.0.2:7 --port xdp:eth1 --addr 10.0.0.1/24
  bywash tcp load redis [fe80::2%eth1]:6379 --port xdp:eth1 --addr fd00::1/64    on the link of eth1
  bywash tcp echo --config web.toml --congestion newreno       ports, addresses and [tcp] from a file, as serve takes it

Exit codes: 0 the aim was met; 1 it was not; 2 wrong input, or a port could not be opened";

/// Servers and clients of TCP.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Send back what comes
    Echo(ServerArgs),
    /// Swallow what comes
    Sink(ServerArgs),
    /// Send as fast as TCP allows to all who connect
    Upload(ServerArgs),
    /// Serve HTTP: /N is N bytes, and each --file, or parts of it, under its name
    Http(HttpArgs),
    /// Send what is typed and show what comes
    Connect(ConnectArgs),
    /// Receive by parallel streams, as fast as it goes. With --duration and without --path, streams that all end before are no success
    Download(DownloadArgs),
    /// Send requests and measure how long the answers take
    Load(LoadArgs),
}

/// All of [`PortArgs`]. As a group some of them would always be there: those that have defaults.
const PORT_OPTIONS: [&str; 13] = [
    "queues",
    "only",
    "ntuple",
    "steer",
    "ring",
    "zero_copy",
    "xdp",
    "busy_poll",
    "force",
    "no_iommu",
    "memory",
    "huge_pages",
    "frame_stride",
];

/// Where connections are made.
#[derive(clap::Args, Debug)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    pub(crate) instance: InstanceArgs,
    /// Use the kernel's sockets, to compare
    // What would have no effect there is refused: else it would seem to have had some on what is compared.
    #[arg(
        long,
        conflicts_with_all = ["port", "vlan", "addr", "route", "no_redirects", "name", "config", "batch"],
        conflicts_with_all = PORT_OPTIONS
    )]
    pub(crate) kernel: bool,
    #[command(flatten)]
    pub(crate) ports: PortArgs,
    #[command(flatten)]
    pub(crate) worker: WorkerArgs,
    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

#[derive(clap::Args, Debug)]
struct ServerArgs {
    /// The port of TCP [default: that of the service: 7 echo, 9 sink, 19 upload, 80 http]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    listen: Option<u16>,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(clap::Args, Debug)]
struct HttpArgs {
    /// A file to serve under its name; it is read once, at the start. Several for several
    #[arg(long = "file", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// End connections by which no whole request has come, or nothing of an answer was taken, for so long
    // As nginx has it for a request's head and for an answer.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = values::duration)]
    idle_timeout: std::time::Duration,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(clap::Args, Debug)]
struct ConnectArgs {
    /// The server; a link-local one with its interface, [fe80::1%eth1]:80, where there are several
    #[arg(value_name = "ADDRESS:PORT", value_parser = ScopedEnd::of)]
    to: ScopedEnd,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(clap::Args, Debug)]
struct DownloadArgs {
    /// The server; a link-local one with its interface, [fe80::1%eth1]:80, where there are several
    #[arg(value_name = "ADDRESS:PORT", value_parser = ScopedEnd::of)]
    from: ScopedEnd,
    /// Ask an HTTP server for this path; without, the server sends unasked
    #[arg(long, value_name = "PATH", alias = "http")]
    path: Option<String>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    streams: u32,
    #[command(flatten)]
    place: PlaceArgs,
}

#[derive(clap::Args, Debug)]
struct LoadArgs {
    /// What is spoken
    #[arg(value_name = "PROTOCOL")]
    protocol: Protocol,
    /// The server; a link-local one with its interface, [fe80::1%eth1]:80, where there are several
    #[arg(value_name = "ADDRESS:PORT", value_parser = ScopedEnd::of)]
    to: ScopedEnd,
    /// The path that is asked for; http only
    #[arg(long, value_name = "PATH", default_value = "/")]
    path: String,
    /// Store values of so many bytes instead of asking for one; redis and memcached
    #[arg(long, value_name = "BYTES", value_parser = values::bytes)]
    set: Option<usize>,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    connections: u32,
    /// Requests under way on each connection at most
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    depth: u32,
    /// Requests per second, due at their times whatever became of the others; as fast as answers come without it
    #[arg(long, value_name = "RATE", value_parser = values::count)]
    rate: Option<u64>,
    /// Stop after so many answers
    #[arg(long, value_name = "N", value_parser = values::count)]
    requests: Option<u64>,
    /// How long the server may take to answer a request, or to let a connection in: then it has failed, and its connection is opened
    /// anew. With --requests the rest is given up when nothing but failures has come for as long
    // As ab has it: TCP repairs several losses within that. Two lost SYNs alone take 3 s, more than wrk allows.
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = values::duration)]
    timeout: std::time::Duration,
    #[command(flatten)]
    place: PlaceArgs,
}

/// What `load` speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Protocol {
    Http,
    Redis,
    Memcached,
}

/// Does it.
pub(crate) fn run(args: Args) -> Result<bool, Failure> {
    match args.command {
        Command::Echo(args) => stream("tcp echo", Manner::Echo, 7, args),
        Command::Sink(args) => stream("tcp sink", Manner::Sink, 9, args),
        Command::Upload(args) => stream("tcp upload", Manner::Upload, 19, args),
        Command::Http(args) => {
            let files = read_all(&args.files)?;
            let make = HttpMake { port: args.server.listen.unwrap_or(80), files, idle: args.idle_timeout };
            start("tcp http", |_| Ok(make), args.server.place)
        }
        Command::Connect(args) => {
            let make = |links: &Links| Ok(ConnectMake { to: links.resolve(&args.to)? });
            start("tcp connect", make, args.place)
        }
        Command::Download(args) => {
            args.path.as_deref().map(check_path).transpose()?;
            let (host, duration) = (host(&args.from), args.place.report.duration);
            let request = args
                .path
                .map(|path| format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
            let make = |links: &Links| {
                Ok(DownloadMake {
                    from: links.resolve(&args.from)?,
                    request: request.unwrap_or_default().into_bytes(),
                    streams: args.streams as usize,
                    duration,
                })
            };
            start("tcp download", make, args.place)
        }
        Command::Load(args) => {
            let dialect = dialect(&args)?;
            let make = |links: &Links| {
                Ok(LoadMake {
                    to: links.resolve(&args.to)?,
                    dialect,
                    connections: args.connections as usize,
                    depth: args.depth as usize,
                    rate: args.rate,
                    requests: args.requests,
                    timeout: args.timeout,
                })
            };
            start("tcp load", make, args.place)
        }
    }
}

fn stream(command: &'static str, manner: Manner, usual: u16, args: ServerArgs) -> Result<bool, Failure> {
    let make = StreamMake { manner, port: args.listen.unwrap_or(usual) };
    start(command, |_| Ok(make), args.place)
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<File>, Failure> {
    let mut files = Vec::<File>::new();
    for path in paths {
        let file = read(path)?;
        if files.iter().any(|other| other.name == file.name) {
            return Err(Failure::Usage(format!("--file {}: another has the same name", path.display())));
        }
        files.push(file);
    }
    Ok(files)
}

fn read(path: &std::path::Path) -> Result<File, Failure> {
    let failed = |why: String| Failure::Usage(format!("--file {}: {why}", path.display()));
    let told = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    if !told.is_file() {
        return Err(failed(
            "it is no regular file: a device may have no end, and a pipe nobody who writes".into(),
        ));
    }
    let bytes = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let name = path.file_name().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
    Ok(File { name, bytes: bytes.into(), modified: told.modified().ok() })
}

fn check_path(path: &str) -> Result<(), Failure> {
    if path.starts_with('/') && !path.contains(char::is_whitespace) {
        return Ok(());
    }
    Err(Failure::Usage(format!("--path {path}: write / and what follows it, without blanks")))
}

/// The value of `Host` (RFC 9112, 3.2): an address of IPv6 in brackets, and the port unless it is that of `http` (RFC 9110, 7.2). The
/// link is nobody else's matter (RFC 6874, 4).
fn host(server: &ScopedEnd) -> String {
    let end = server.without_link().to_string();
    end.strip_suffix(":80").map_or_else(|| end.clone(), String::from)
}

/// Whether a server can take values of this size, and this machine what waits to be sent or answered.
fn check_memory(args: &LoadArgs, dialect: &Dialect) -> Result<(), Failure> {
    /// redis' `proto-max-bulk-len` unless it is set otherwise.
    const REDIS: usize = 512 << 20;
    /// Bytes of requests that may be under way at once.
    const UNDER_WAY: u64 = 1 << 30;
    /// What is kept of a request until its answer: when it was due, and when it was sent.
    const TIMES: usize = 16;
    let all = u64::from(args.connections) * u64::from(args.depth);
    let Some(bytes) = args.set else {
        let mut request = Vec::new();
        dialect.request(&mut request);
        if all.saturating_mul((request.len() + TIMES) as u64) > UNDER_WAY {
            return Err(Failure::Usage(format!(
                "--depth {}: {all} requests under way at once are more than {UNDER_WAY} bytes to keep in memory; \
                 ask for fewer --connections, or less --depth",
                args.depth
            )));
        }
        return Ok(());
    };
    if args.protocol == Protocol::Redis && bytes > REDIS {
        return Err(Failure::Usage(format!("--set {bytes}: redis takes values of up to {REDIS} bytes")));
    }
    // Of a short value the rest of its request is the most.
    if all.saturating_mul(bytes.max(64) as u64) > UNDER_WAY {
        return Err(Failure::Usage(format!(
            "--set {bytes}: with {all} requests under way at once these are more than {UNDER_WAY} bytes to keep in memory; \
             ask for smaller values, fewer --connections, or less --depth"
        )));
    }
    Ok(())
}

/// What is spoken, if all that was asked for goes with it.
fn dialect(args: &LoadArgs) -> Result<Dialect, Failure> {
    let dialect = match args.protocol {
        Protocol::Http => Dialect::Http { path: args.path.clone(), host: host(&args.to) },
        Protocol::Redis => Dialect::Redis { set: args.set },
        Protocol::Memcached => Dialect::Memcached { set: args.set },
    };
    let http = args.protocol == Protocol::Http;
    if http && args.set.is_some() {
        return Err(Failure::Usage("--set is for redis and memcached; leave it out".into()));
    }
    check_memory(args, &dialect)?;
    check_path(&args.path)?;
    if !http && args.path != "/" {
        return Err(Failure::Usage("--path is for http; leave it out".into()));
    }
    Ok(dialect)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_sockets_have_no_port_to_be_opened() {
        let command = <PortArgs as clap::Args>::augment_args(clap::Command::new("x"));
        let options: Vec<&str> = command.get_arguments().map(|option| option.get_id().as_str()).collect();
        assert_eq!(options, PORT_OPTIONS);
    }

    #[test]
    fn a_host_is_told_as_a_url_has_it() {
        for (end, told) in [
            ("10.0.0.2:80", "10.0.0.2"),
            ("10.0.0.2:8080", "10.0.0.2:8080"),
            ("10.0.0.80:180", "10.0.0.80:180"),
            ("[fd00::2]:80", "[fd00::2]"),
            ("[fd00::80]:8080", "[fd00::80]:8080"),
            ("[fe80::1%eth1]:80", "[fe80::1]"),
            ("[fe80::1%25eth1]:81", "[fe80::1]:81"),
        ] {
            assert_eq!(host(&ScopedEnd::of(end).unwrap()), told);
        }
    }
}
