//! The border between C and Rust: results as numbers, errors as texts, and no panic that crosses.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::codes::{
    RPCRDMA_E_ARGUMENT, RPCRDMA_E_PANIC, RPCRDMA_E_USAGE, RPCRDMA_OK, code_of, name_of,
};

/// Why a function failed: its number and its sentence.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) code: c_int,
    pub(crate) text: String,
}

impl Failed {
    pub(crate) fn new(code: c_int, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { code, text }
    }

    pub(crate) fn argument(text: impl Into<String>) -> Self {
        Self::new(RPCRDMA_E_ARGUMENT, text)
    }

    pub(crate) fn usage(text: impl Into<String>) -> Self {
        Self::new(RPCRDMA_E_USAGE, text)
    }

    #[cold]
    fn panicked(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| payload.downcast_ref::<&str>().copied());
        let text = text.unwrap_or("without a text");
        Self::new(
            RPCRDMA_E_PANIC,
            format!("the library panicked, which is a fault in it: {text}"),
        )
    }

    /// Its text as C has it.
    pub(crate) fn c_text(&self) -> CString {
        CString::new(self.text.replace('\0', "?")).unwrap_or_default()
    }

    /// Makes it the last failure of this thread.
    #[cold]
    fn report(self) -> c_int {
        // A thread that ends has no place for it any more.
        let _ = LAST.try_with(|last| last.replace(Some(self.c_text())));
        self.code
    }
}

impl From<rpcrdma::Error> for Failed {
    fn from(error: rpcrdma::Error) -> Self {
        let mut text = error.to_string();
        // C has no other way to the reasons behind an error.
        let mut next = std::error::Error::source(&error);
        while let Some(source) = next {
            let reason = source.to_string();
            if !text.contains(&reason) {
                text = format!("{text}: {reason}");
            }
            next = source.source();
        }
        Self::new(code_of(error.kind()), text)
    }
}

thread_local! {
    /// The text of the last failure.
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs what a function does. Its number, and the text of a failure, are what C gets.
#[inline]
pub(crate) fn guarded(body: impl FnOnce() -> Result<c_int, Failed>) -> c_int {
    let ended = catch_unwind(AssertUnwindSafe(body));
    match ended {
        Ok(Ok(number)) => number,
        Ok(Err(failed)) => failed.report(),
        Err(payload) => Failed::panicked(&*payload).report(),
    }
}

/// As [`guarded`], for what succeeds with nothing but that.
#[inline]
pub(crate) fn done(body: impl FnOnce() -> Result<(), Failed>) -> c_int {
    guarded(|| body().map(|()| RPCRDMA_OK))
}

/// As [`guarded`], for a function that returns a value; `otherwise` is that of a failure.
#[inline]
pub(crate) fn value<T>(otherwise: T, body: impl FnOnce() -> Result<T, Failed>) -> T {
    let mut result = otherwise;
    done(|| body().map(|value| result = value));
    result
}

/// Says why the last function that failed on this thread did: a sentence in UTF-8. "" when none failed yet.
///
/// The text is valid until another function fails on this thread, or the thread ends.
#[unsafe(no_mangle)]
pub extern "C" fn rpcrdma_error_text() -> *const c_char {
    let text = |last: &RefCell<Option<CString>>| {
        // Its memory stays where it is until it is replaced.
        last.borrow().as_ref().map(|text| text.as_ptr())
    };
    let text = LAST.try_with(text).ok().flatten();
    text.unwrap_or(c"".as_ptr())
}

/// The name of an error's code, such as "RPCRDMA_E_TIMED_OUT". It is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn rpcrdma_error_name(code: c_int) -> *const c_char {
    name_of(code).as_ptr()
}

/// The version of the library, such as "0.1.0". It is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn rpcrdma_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The text that C sees.
    fn last() -> String {
        // SAFETY: a text of C that ends with a zero, and is not replaced before it is copied.
        let text = unsafe { CStr::from_ptr(rpcrdma_error_text()) };
        text.to_str().expect("UTF-8").to_owned()
    }

    #[test]
    fn a_panic_is_an_error() {
        let code = guarded(|| panic!("number {}", 7));
        assert_eq!(code, RPCRDMA_E_PANIC);
        assert!(last().ends_with("number 7"), "{}", last());
        assert_eq!(guarded(|| std::panic::panic_any(1_u8)), RPCRDMA_E_PANIC);
        assert!(last().ends_with("without a text"));
        assert_eq!(value(3, || panic!("again")), 3);
    }

    #[test]
    fn each_thread_has_its_last_error() {
        assert_eq!(last(), "");
        assert_eq!(done(|| Err(Failed::usage("one\0two"))), RPCRDMA_E_USAGE);
        assert_eq!(done(|| Ok(())), RPCRDMA_OK);
        assert_eq!(last(), "one?two", "success leaves it");
        std::thread::spawn(|| assert_eq!(last(), ""))
            .join()
            .expect("no failure there");
    }
}
