//! The ways in which calls of rdma-core report failure.
//!
//! * Calls that make something return null and set `errno`.
//! * `ibv_post_*`, `ibv_modify_*`, `ibv_destroy_*` and `ibv_query_*` return the error number.
//! * `rdma_*`, and some calls of some providers, return -1 and set `errno`.
//!
//! A provider that confuses the last two is handled as well.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

use crate::interface::SetupError;

/// The result of a call that makes an object.
pub(crate) fn made<T>(call: impl FnOnce() -> *mut T) -> io::Result<NonNull<T>> {
    // Some providers return null and leave `errno` as it is: what an earlier call left there is not the reason.
    // SAFETY: each thread has its own `errno`, which lives as long as the thread.
    unsafe { *libc::__errno_location() = 0 };
    NonNull::new(call()).ok_or_else(|| match io::Error::last_os_error() {
        error if error.raw_os_error() == Some(0) => {
            io::Error::other("the device's library gives no reason")
        }
        error => error,
    })
}

/// The result of a call that returns zero for success.
pub(crate) fn done(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        number => Err(io::Error::from_raw_os_error(number.saturating_abs())),
    }
}

/// The error, with the operation and the system's reason.
pub(crate) fn failed(doing: impl Into<String>) -> impl FnOnce(io::Error) -> SetupError {
    let doing = doing.into();
    move |source| SetupError::System { doing, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_convention_is_read() {
        assert!(done(0).is_ok());
        assert_eq!(done(22).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(done(-22).unwrap_err().raw_os_error(), Some(22));
        assert_eq!(
            done(c_int::MIN).unwrap_err().raw_os_error(),
            Some(c_int::MAX)
        );
        // A descriptor that cannot be, so that errno is known.
        // SAFETY: closing no descriptor harms none.
        let returned = unsafe { libc::close(-1) };
        assert_eq!(
            done(returned).unwrap_err().raw_os_error(),
            Some(libc::EBADF)
        );
        let nothing = made(|| {
            // SAFETY: as above.
            unsafe { libc::close(-1) };
            std::ptr::null_mut::<u8>()
        });
        assert_eq!(nothing.unwrap_err().raw_os_error(), Some(libc::EBADF));
        // What the last call left in errno is not the reason of this one.
        let silent = made(std::ptr::null_mut::<u8>).unwrap_err();
        assert_eq!(silent.to_string(), "the device's library gives no reason");
        let mut object = 1;
        assert!(made(|| &raw mut object).is_ok());
    }
}
