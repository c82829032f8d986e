//! QEMU guests for tests: another kernel, with Linux's own NIC drivers, started and told what to do within a time limit.
//!
//! `cargo xtask guest` prepares the kernel and the root folder, and QEMU itself. A guest is plain emulation (TCG): it needs no
//! right and no hardware, and is ready in seconds. Each [`Guest::run`] sends a shell script through a serial port
//! and waits for its output, so that the test can look at the other end of a cable between two of them. When something
//! fails, the error has the script's output and what the kernel wrote to its console.

use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// What guests are made of. As many may run as libtest runs tests, one for each core: a guest keeps about one busy, however many
/// virtual ones it has.
#[derive(Debug)]
pub struct Kit {
    folder: PathBuf,
}

/// `None` when `cargo xtask guest` was not run: the test has then been [skipped](crate::skip()) and returns.
#[must_use = "without a kit the test returns"]
pub fn kit() -> Option<Kit> {
    let Some(folder) = folder().filter(|folder| folder.join("prepared").is_file()) else {
        crate::skip("guests are not prepared: cargo xtask guest");
        return None;
    };
    Some(Kit { folder })
}

/// Where `cargo xtask` says that guests are, or where it puts them.
fn folder() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = || variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
    variable("BYWASH_GUEST").or_else(|| Some(cache()?.join("bywash/guest")))
}

/// What a guest is to have. Its NICs lie at PCI addresses `0000:01:00.0`, `0000:02:00.0` and so on, in the order they are added.
#[derive(Clone, Debug)]
pub struct Machine {
    cpus: u32,
    iommu: bool,
    kernel: String,
    share: Option<PathBuf>,
    limit: Duration,
    devices: Vec<String>,
    nics: u32,
}

/// Memory of a guest in MiB.
const MEMORY_MIB: u32 = 1024;

impl Default for Machine {
    /// Two processors, no NIC, and four minutes to its end once it has started.
    fn default() -> Self {
        let limit = Duration::from_secs(240);
        let (kernel, devices) = (String::new(), Vec::new());
        Self { cpus: 2, iommu: false, kernel, share: None, limit, devices, nics: 0 }
    }
}

impl Machine {
    /// It has so many virtual processors.
    #[must_use]
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    /// It has a virtual IOMMU (VT-d), strict for the kernel's drivers as well.
    #[must_use]
    pub fn iommu(self) -> Self {
        Self { iommu: true, ..self }
    }

    /// Words for the kernel's command line.
    #[must_use]
    pub fn kernel(self, words: &str) -> Self {
        Self { kernel: words.into(), ..self }
    }

    /// It sees a folder of this machine, read-only, at `/host`.
    #[must_use]
    pub fn share(self, folder: &Path) -> Self {
        Self { share: Some(folder.into()), ..self }
    }

    /// How long it may run once it has started; half as long may that take.
    #[must_use]
    pub fn limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Adds a NIC that is served at a vfio-user socket.
    #[must_use]
    pub fn vfio_user(mut self, socket: &Path) -> Self {
        let path = socket.to_string_lossy().replace('\\', "\\\\").replace('"', "\\\"");
        let port = self.port();
        let socket = format!("\"socket\":{{\"type\":\"unix\",\"path\":\"{path}\"}}");
        self.device(&format!("{{\"driver\":\"vfio-user-pci\",\"bus\":\"{port}\",{socket}}}"))
    }

    /// Adds QEMU's own 82576 with its virtual functions, plugged into hub `hub`.
    #[must_use]
    pub fn igb(self, hub: u32, mac: &str) -> Self {
        self.plugged("igb", hub, mac)
    }

    /// Adds a virtio NIC, plugged into hub `hub`.
    #[must_use]
    pub fn virtio_net(self, hub: u32, mac: &str) -> Self {
        self.plugged("virtio-net-pci", hub, mac)
    }

    /// Adds QEMU's 82576, a virtio NIC and another 82576 behind one conventional PCI bridge, at `0000:04:01.0` to `0000:04:03.0`
    /// when they are the third and following: no IOMMU can tell them apart.
    #[must_use]
    pub fn bridged(mut self, hub: u32, macs: [&str; 3]) -> Self {
        let port = self.port();
        let bridge = format!("bridge{port}");
        self = self.device(&format!("pcie-pci-bridge,id={bridge},bus={port}"));
        for (slot, (driver, mac)) in (1..).zip(["igb", "virtio-net-pci", "igb"].into_iter().zip(macs)) {
            let net = format!("{bridge}net{slot}");
            self.devices.extend(["-netdev".into(), format!("hubport,id={net},hubid={hub}")]);
            self = self.device(&format!("{driver},bus={bridge},addr={slot},netdev={net},mac={mac},romfile="));
        }
        self
    }

    fn plugged(mut self, driver: &str, hub: u32, mac: &str) -> Self {
        let port = self.port();
        let net = format!("net{}", self.nics);
        self.devices.extend(["-netdev".into(), format!("hubport,id={net},hubid={hub}")]);
        self.device(&format!("{driver},bus={port},netdev={net},mac={mac},romfile="))
    }

    /// A PCIe port, which each NIC has for itself: so it has an IOMMU group for itself, too.
    fn port(&mut self) -> String {
        self.nics += 1;
        let port = format!("port{}", self.nics);
        self.devices.push("-device".into());
        self.devices.push(format!("pcie-root-port,id={port},chassis={0},slot={0}", self.nics));
        port
    }

    fn device(mut self, device: &str) -> Self {
        self.devices.extend(["-device".into(), device.into()]);
        self
    }

    fn arguments(&self, kit: &Kit) -> Vec<String> {
        let file = |name: &str| kit.folder.join(name).display().to_string();
        let folder = |path: &str, tag: &str| {
            let path = path.replace(',', ",,");
            format!("local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap")
        };
        let iommu = if self.iommu { "intel_iommu=on" } else { "" };
        let (cpus, kernel) = (self.cpus, &self.kernel);
        let fixed = [
            ("-machine", "q35,kernel-irqchip=split,memory-backend=memory".to_owned()),
            // Devices in other processes map it.
            ("-object", format!("memory-backend-memfd,id=memory,size={MEMORY_MIB}M,share=on")),
            ("-m", MEMORY_MIB.to_string()),
            ("-smp", cpus.to_string()),
            ("-accel", "tcg".into()),
            ("-cpu", "max".into()),
            ("-display", "none".into()),
            ("-kernel", file("vmlinuz")),
            ("-initrd", file("initramfs")),
            // On a machine that is busy the kernel would count too few ticks as it starts, and give up.
            ("-append", format!("console=ttyS0 quiet loglevel=5 panic=-1 no_timer_check {iommu} {kernel}")),
            // Also when the test is killed.
            ("-run-with", "exit-with-parent=on".into()),
            ("-chardev", "file,id=console,path=/dev/stderr".into()),
            ("-serial", "chardev:console".into()),
            ("-chardev", "stdio,id=agent,signal=off".into()),
            ("-device", "virtio-serial-pci".into()),
            ("-device", "virtserialport,chardev=agent".into()),
            ("-virtfs", folder(&file("root"), "root")),
        ];
        let mut all: Vec<String> = ["-nodefaults", "-no-user-config", "-no-reboot"].map(String::from).into();
        all.extend(fixed.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        if let Some(share) = &self.share {
            all.extend(["-virtfs".into(), folder(&share.display().to_string(), "host")]);
        }
        if self.iommu {
            // Without caching mode QEMU gives up when a driver in user space maps memory for a vfio-user device.
            all.extend(["-device".into(), "intel-iommu,intremap=on,caching-mode=on".into()]);
        }
        all.extend(self.devices.iter().cloned());
        all
    }
}

/// A guest that runs. Dropping it ends it at once.
#[derive(Debug)]
pub struct Guest {
    qemu: Child,
    port: ChildStdin,
    lines: Receiver<String>,
    console: Arc<Mutex<String>>,
    end: Instant,
    scripts: u32,
}

/// How often a guest is started until it is up. Who serves it devices has to take so many clients, one after the other.
pub const ATTEMPTS: usize = 2;

impl Kit {
    /// Starts a guest and waits until it takes scripts, or starts [another](ATTEMPTS).
    ///
    /// It ends with the thread that starts it.
    ///
    /// # Errors
    /// When QEMU cannot be started or ends, or the limit is over.
    pub fn boot(&self, machine: &Machine) -> Result<Guest, GuestError> {
        let up = |limit| {
            let mut guest = self.start(machine, limit)?;
            guest.until("the guest does not start", |line| line == "ready")?;
            Ok(guest)
        };
        // An emulated kernel on a busy machine has stood still for good while it measured its clock. That says nothing about
        // what is tested: it gets a second chance.
        let mut guest = up(machine.limit / 2).or_else(|_: GuestError| up(machine.limit))?;
        guest.limit(machine.limit);
        if machine.share.is_some() {
            guest
                .run("mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=262144 host /host")?;
        }
        Ok(guest)
    }

    /// Starts QEMU.
    fn start(&self, machine: &Machine, limit: Duration) -> Result<Guest, GuestError> {
        let end = Instant::now() + limit;
        let mut command = Command::new(self.folder.join("qemu"));
        command.args(machine.arguments(self));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed =
            |error: std::io::Error| GuestError::new("QEMU cannot be started", &error.to_string(), "");
        let mut qemu = command.spawn().map_err(failed)?;
        let (Some(port), Some(output), Some(errors)) =
            (qemu.stdin.take(), qemu.stdout.take(), qemu.stderr.take())
        else {
            return Err(GuestError::new("QEMU cannot be started", "its pipes are missing", ""));
        };
        let (sender, lines) = channel();
        thread::spawn(move || split(output, &sender));
        let console = Arc::new(Mutex::new(String::new()));
        let log = console.clone();
        thread::spawn(move || keep(errors, &log));
        Ok(Guest { qemu, port, lines, console, end, scripts: 0 })
    }
}

impl Guest {
    /// Runs a shell script and returns its output, standard error included. Its exit code must be 0; a script ends at its
    /// first command that fails.
    ///
    /// # Errors
    /// When the script fails, the guest dies, or the limit is over.
    pub fn run(&mut self, script: &str) -> Result<String, GuestError> {
        self.scripts += 1;
        let word = format!("end-of-script-{}", self.scripts);
        let script = format!("set -e\n{script}\n");
        self.send(&word, &script)?;
        let mut output = self
            .until("the guest does not end its script", |line| line.starts_with(&word))
            .map_err(|error| GuestError { details: format!("{script}\n{}", error.details), ..error })?;
        let code = output.pop().and_then(|line| Some(line.rsplit_once(' ')?.1.to_owned()));
        // The line end that stands in front of the last line is not the script's.
        let output = output.join("\n").trim_end_matches('\n').to_owned();
        match code.as_deref() {
            Some("0") => Ok(output),
            code => {
                let why = format!("a script ended with code {}", code.unwrap_or("?"));
                Err(self.error(&why, &format!("{script}\n{output}")))
            }
        }
    }

    /// Changes how long it may run: so long from now on.
    pub fn limit(&mut self, limit: Duration) {
        self.end = Instant::now() + limit;
    }

    /// Shuts the guest down, and waits for that.
    ///
    /// # Errors
    /// When it does not end in time, or QEMU says that it failed.
    pub fn power_off(mut self) -> Result<(), GuestError> {
        // A script that ends with the machine has no last line.
        self.send("off", "poweroff -f")?;
        loop {
            match self.qemu.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(self.error("QEMU failed", &status.to_string())),
                Ok(None) if Instant::now() < self.end => thread::sleep(Duration::from_millis(20)),
                Ok(None) | Err(_) => return Err(self.error("the guest does not power off", "")),
            }
        }
    }

    /// Sends a script: its length first, itself when the guest is ready for it.
    fn send(&mut self, word: &str, script: &str) -> Result<(), GuestError> {
        let refused =
            |guest: &Self, error| guest.error("the guest takes no script", &format!("{error}\n{script}"));
        writeln!(self.port, "{} {word}", script.len()).map_err(|error| refused(self, error))?;
        self.until("the guest takes no script", |line| line == "ready")?;
        self.port.write_all(script.as_bytes()).map_err(|error| refused(self, error))
    }

    /// What the guest's kernel wrote to its console, and QEMU to its standard error, so far.
    pub fn console(&self) -> String {
        self.console.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Lines up to the first that is the `last`, that one included.
    fn until(&mut self, problem: &str, last: impl Fn(&str) -> bool) -> Result<Vec<String>, GuestError> {
        let mut seen = Vec::new();
        loop {
            match self.lines.recv_timeout(self.end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let ends = last(&line);
                    seen.push(line);
                    if ends {
                        return Ok(seen);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    return Err(self.error(&format!("{problem} in time"), &seen.join("\n")));
                }
                Err(RecvTimeoutError::Disconnected) => {
                    // Its last words come by another pipe.
                    self.qemu.wait().ok();
                    thread::sleep(Duration::from_millis(100));
                    return Err(self.error(&format!("{problem}: it has ended"), &seen.join("\n")));
                }
            }
        }
    }

    fn error(&self, why: &str, details: &str) -> GuestError {
        GuestError::new(why, details, &self.console())
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // Both fail only when it has ended.
        self.qemu.kill().ok();
        self.qemu.wait().ok();
    }
}

/// What went wrong with a guest, with all that it said.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}\n{details}\n--- console ---\n{console}")]
pub struct GuestError {
    why: String,
    /// Script and output.
    details: String,
    console: String,
}

impl GuestError {
    fn new(why: &str, details: &str, console: &str) -> Self {
        Self { why: why.into(), details: details.into(), console: console.into() }
    }
}

/// As text: a test that returns it shows it so.
impl fmt::Debug for GuestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Sends each line on, until the pipe ends or nobody wants them.
fn split(pipe: impl Read, to: &Sender<String>) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        if to.send(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned()).is_err() {
            break;
        }
    }
}

/// Keeps what comes out of a pipe.
fn keep(pipe: impl Read, log: &Mutex<String>) {
    for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_str(String::from_utf8_lossy(&line).trim_end_matches('\r'));
        log.push('\n');
    }
}
