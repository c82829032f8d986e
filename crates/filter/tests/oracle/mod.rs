//! libpcap's compiler and interpreter as a judge of what expressions mean.
//!
//! The library is opened at run time where there is one: by the system's search path, or below the directory that
//! `BYWASH_TOOLS` leads to (Debian's package `libpcap0.8`, which tcpdump brings with it). Nothing is linked against it.
#![expect(unsafe_code, reason = "calls of a C library")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use libloading::Library;

/// libpcap, opened.
pub(crate) struct Oracle {
    library: Library,
    /// A handle for Ethernet that captures nothing.
    handle: *mut c_void,
    /// One user at a time: the compiler keeps things in the handle.
    _alone: MutexGuard<'static, ()>,
}

/// A compiled expression.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Code(Vec<Instruction>);

/// `struct bpf_insn` of `pcap/bpf.h`.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
struct Instruction {
    code: u16,
    yes: u8,
    no: u8,
    number: u32,
}

/// `struct bpf_program` of `pcap/bpf.h`.
#[repr(C)]
struct RawProgram {
    length: c_uint,
    instructions: *mut Instruction,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut RawProgram, *const c_char, c_int, u32) -> c_int;
type LastError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type FreeCode = unsafe extern "C" fn(*mut RawProgram);
type Filter = unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint;
type Close = unsafe extern "C" fn(*mut c_void);

/// `DLT_EN10MB` of `pcap/dlt.h`.
const ETHERNET: c_int = 1;
/// Longest packet that a match returns.
const SNAP_LENGTH: c_int = 262_144;
/// `PCAP_NETMASK_UNKNOWN` of `pcap/pcap.h`.
const NO_NETMASK: u32 = u32::MAX;

impl Oracle {
    /// Opens the library, or says why a test can't be run.
    pub(crate) fn open() -> Result<Self, String> {
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut tried = vec![PathBuf::from("libpcap.so.0.8"), PathBuf::from("libpcap.so.1")];
        if let Some(tools) = std::env::var_os("BYWASH_TOOLS") {
            // The packages lie beside the folder of the programs in them.
            let unpacked = PathBuf::from(tools).join("../debian/usr/lib");
            for machine in ["x86_64-linux-gnu", "aarch64-linux-gnu"] {
                tried.push(unpacked.join(machine).join("libpcap.so.0.8"));
            }
        }
        // SAFETY: libpcap's initialisers, and those of what it links, set up tables and nothing that we rely on.
        let library = tried.iter().find_map(|path| unsafe { Library::new(path) }.ok());
        let library =
            library.ok_or("no libpcap here: install libpcap0.8, or unpack it and set BYWASH_TOOLS")?;
        // SAFETY: the type is this function's in pcap/pcap.h.
        let open: OpenDead =
            *unsafe { library.get(b"pcap_open_dead\0") }.map_err(|error| error.to_string())?;
        // SAFETY: any two numbers may be given.
        let handle = unsafe { open(ETHERNET, SNAP_LENGTH) };
        if handle.is_null() {
            Err("libpcap opens no handle".into())
        } else {
            Ok(Self { library, handle, _alone: alone })
        }
    }

    /// Compiles an expression, or says why libpcap refuses it.
    pub(crate) fn compile(&self, text: &str, optimize: bool, netmask: Option<u32>) -> Result<Code, String> {
        let Ok(text) = CString::new(text) else { return Err("a zero byte".into()) };
        // In host byte order: so it is used, though pcap_lookupnet gives it in network byte order.
        let netmask = netmask.unwrap_or(NO_NETMASK);
        let mut program = RawProgram { length: 0, instructions: std::ptr::null_mut() };
        let compile: Compile = self.function(b"pcap_compile\0");
        let last_error: LastError = self.function(b"pcap_geterr\0");
        let free: FreeCode = self.function(b"pcap_freecode\0");
        // SAFETY: the handle is open, the program ours, the text ends with a zero.
        let result =
            unsafe { compile(self.handle, &raw mut program, text.as_ptr(), c_int::from(optimize), netmask) };
        if result != 0 {
            // SAFETY: the handle is open; what is returned ends with a zero and stays until the next call.
            return Err(unsafe { CStr::from_ptr(last_error(self.handle)) }.to_string_lossy().into_owned());
        }
        // SAFETY: compiled without an error, so that the program has so many instructions.
        let code =
            unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) }.to_vec();
        // SAFETY: compiled above, freed once, not used after.
        unsafe { free(&raw mut program) };
        Ok(Code(code))
    }

    /// Whether a packet matches that had so many bytes on the wire.
    pub(crate) fn matches(&self, code: &Code, packet: &[u8], wire_length: usize) -> bool {
        self.matcher(code)(packet, wire_length)
    }

    /// The same as a function, for many packets.
    pub(crate) fn matcher<'a>(&'a self, code: &'a Code) -> impl Fn(&[u8], usize) -> bool + 'a {
        let filter: Filter = self.function(b"bpf_filter\0");
        move |packet, wire_length| {
            let [wire, captured] =
                [wire_length, packet.len()].map(|length| c_uint::try_from(length).unwrap_or(c_uint::MAX));
            // SAFETY: the code is what the compiler made, which only jumps inside itself; the packet has `captured`
            // bytes; the library stays open while `self` is borrowed.
            unsafe { filter(code.0.as_ptr(), packet.as_ptr(), wire, captured) != 0 }
        }
    }

    fn function<T: Copy>(&self, name: &[u8]) -> T {
        // SAFETY: each caller names the type that the function has in pcap/pcap.h.
        *unsafe { self.library.get::<T>(name) }.unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Oracle {
    fn drop(&mut self) {
        let close: Close = self.function(b"pcap_close\0");
        // SAFETY: opened by us, closed once, not used after.
        unsafe { close(self.handle) };
    }
}
