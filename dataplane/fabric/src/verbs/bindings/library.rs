//! Loads the libraries of rdma-core once, and looks up their symbols by name and version.

use std::ffi::{CStr, CString, c_void};
use std::fmt;
use std::io;
use std::path::Path;
use std::ptr::NonNull;

/// The packages that contain the libraries, by distribution.
const PACKAGES: &str = "libibverbs1 librdmacm1 ibverbs-providers (Debian, Ubuntu) or libibverbs librdmacm (Fedora, RHEL)";

/// Why rdma-core cannot be used: the missing library or symbol, and the packages to install.
#[derive(Debug)]
pub(crate) struct Missing(String);

impl Missing {
    fn library(name: &CStr, why: &str) -> Self {
        Self(format!(
            "{} could not be loaded ({why}); install {PACKAGES}",
            name.to_string_lossy()
        ))
    }

    fn symbol(library: &CStr, symbol: &str, why: &str) -> Self {
        Self(format!(
            "{} has no {symbol} ({why}); install a newer {PACKAGES}",
            library.to_string_lossy()
        ))
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Missing {}

impl From<Missing> for io::Error {
    fn from(missing: Missing) -> Self {
        Self::new(io::ErrorKind::NotFound, missing)
    }
}

/// A loaded library. It is never unloaded, because its functions may run until the process ends.
pub(super) struct Library<'a> {
    name: &'a CStr,
    handle: NonNull<c_void>,
}

impl<'a> Library<'a> {
    /// Loads the library with this name or path.
    pub(super) fn open(name: &'a CStr) -> Result<Self, Missing> {
        // SAFETY: the name is a C string. The load runs only the initialisers of rdma-core.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let handle = NonNull::new(handle).ok_or_else(|| Missing::library(name, &last_error()))?;
        Ok(Self { name, handle })
    }

    /// The address of a symbol in the version of the headers. A library may have several versions of one symbol.
    pub(super) fn symbol(&self, symbol: &str, version: &CStr) -> Result<NonNull<c_void>, Missing> {
        let missing = |why: &str| Missing::symbol(self.name, symbol, why);
        let name = CString::new(symbol).map_err(|error| missing(&error.to_string()))?;
        #[cfg(target_env = "gnu")]
        // SAFETY: the library is loaded, and both names are C strings.
        let address =
            unsafe { libc::dlvsym(self.handle.as_ptr(), name.as_ptr(), version.as_ptr()) };
        // Other C libraries have no `dlvsym`; `dlsym` returns the default version, which is the newest.
        #[cfg(not(target_env = "gnu"))]
        let address = {
            let _ = version;
            // SAFETY: as above.
            unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) }
        };
        NonNull::new(address).ok_or_else(|| missing(&last_error()))
    }
}

/// The error of the last call of the loader on this thread.
fn last_error() -> String {
    // SAFETY: the call takes no arguments; its text is valid until the next call of the loader on this thread.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no reason was given".to_owned();
    }
    // SAFETY: the pointer is not null, so it is a C string; it is copied before the next call of the loader.
    unsafe { CStr::from_ptr(text) }
        .to_string_lossy()
        .into_owned()
}

/// Declares the functions of libraries: a table of their addresses, its load function, and one function per entry that
/// calls it through the table. The functions of the data path are not in the table (see `inline.rs`), so the lookup of
/// the table costs nothing there.
#[cfg(not(feature = "rdma-sys"))]
macro_rules! functions {
    ($($library:ident = $file:literal {
        $($version:literal fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    })*) => {
        /// The addresses of the functions.
        pub(crate) struct Functions {
            $($(pub(crate) $name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        impl Functions {
            /// Loads the libraries from `folder`, or from the folders of the system.
            pub(crate) fn load(
                folder: Option<&std::path::Path>,
            ) -> Result<Self, super::library::Missing> {
                $(
                    let path = super::library::path(folder, $file);
                    let $library = super::library::Library::open(&path)?;
                )*
                Ok(Self {
                    $($($name: {
                        let symbol = $library.symbol(stringify!($name), $version)?;
                        // SAFETY: the header of this version declares the function so.
                        unsafe {
                            std::mem::transmute::<
                                std::ptr::NonNull<std::ffi::c_void>,
                                unsafe extern "C" fn($($type),*) $(-> $result)?,
                            >(symbol)
                        }
                    },)*)*
                })
            }
        }

        #[cfg(test)]
        thread_local! {
            static REPLACED: std::cell::Cell<Option<&'static Functions>> =
                const { std::cell::Cell::new(None) };
        }

        #[cfg(test)]
        impl Functions {
            /// Functions that may not be called.
            pub(crate) fn absent() -> Self {
                Self {
                    $($($name: {
                        unsafe extern "C" fn absent($($argument: $type),*) $(-> $result)? {
                            let _ = ($($argument,)*);
                            panic!("{} is not replaced", stringify!($name))
                        }
                        absent
                    },)*)*
                }
            }

            /// Replaces the functions of rdma-core for this thread. They are kept until the process ends, because objects
            /// may outlive their use.
            pub(crate) fn replace(by: Option<Self>) {
                // Where memcheck finds them.
                static KEPT: std::sync::Mutex<Vec<&Functions>> = std::sync::Mutex::new(Vec::new());
                REPLACED.set(by.map(|by| {
                    let by = &*Box::leak(Box::new(by));
                    KEPT.lock().expect("no test panics here").push(by);
                    by
                }));
            }
        }

        /// The functions of the rdma-core of this machine, loaded once. After an error the next call tries again.
        pub(crate) fn loaded() -> Result<&'static Functions, super::library::Missing> {
            #[cfg(test)]
            if let Some(functions) = REPLACED.get() {
                return Ok(functions);
            }
            static LOADED: std::sync::OnceLock<Functions> = std::sync::OnceLock::new();
            if let Some(functions) = LOADED.get() {
                return Ok(functions);
            }
            let functions = Functions::load(None)?;
            Ok(LOADED.get_or_init(|| functions))
        }

        /// As [`loaded`], for callers after a success of [`super::available`]. Panics without it.
        fn table() -> &'static Functions {
            match loaded() {
                Ok(functions) => functions,
                Err(missing) => panic!("{missing}"),
            }
        }

        $($(
            /// The C function with this name.
            ///
            /// # Safety
            ///
            /// As the C function.
            ///
            /// # Panics
            ///
            /// rdma-core cannot be used ([`super::available`] fails).
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                // SAFETY: as the caller promises.
                unsafe { (table().$name)($($argument),*) }
            }
        )*)*
    };
}
#[cfg(not(feature = "rdma-sys"))]
pub(super) use functions;

/// The path of a library in `folder`, or its name alone, with which the loader searches the folders of the system.
pub(super) fn path(folder: Option<&Path>, file: &CStr) -> CString {
    use std::os::unix::ffi::OsStrExt;
    let Some(folder) = folder else {
        return file.to_owned();
    };
    let path = folder.join(std::ffi::OsStr::from_bytes(file.to_bytes()));
    CString::new(path.as_os_str().as_bytes()).unwrap_or_else(|_| file.to_owned())
}
