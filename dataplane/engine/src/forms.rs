//! The forms of short messages ([`rpcrdma_protocol::form`]), as ports carry them.

use rpcrdma_fabric::interface::{FORM_WORDS_MAX, FormShape, Formed, Forms};
use rpcrdma_protocol::form::{self, CallWords, FORMS, Folded, Form, PAIRS_MAX, Pairs};

const _: () = assert!(PAIRS_MAX == FORM_WORDS_MAX);

/// What a port has to know of the forms.
pub(crate) const ALL: Forms = Forms {
    number: FORMS,
    shapes: &SHAPES,
    unfold: |formed, rest, out| {
        let form = Form::of_number(formed.form)?;
        form::unfold(form, &formed.words, rest, out)
    },
};

/// Headers have fewer than 128 bytes: the conversion loses nothing.
const fn header_bytes_of(form: Form) -> u16 {
    let [low, high, ..] = form.header_bytes().to_le_bytes();
    u16::from_le_bytes([low, high])
}

const SHAPES: [FormShape; Form::ALL.len()] = {
    let mut shapes = [FormShape {
        words: 0,
        header_bytes: 0,
    }; Form::ALL.len()];
    let mut number = 0;
    while number < shapes.len() {
        let form = Form::ALL[number];
        shapes[number] = FormShape {
            words: form.pairs(),
            header_bytes: header_bytes_of(form),
        };
        number += 1;
    }
    shapes
};

/// The headers of a message, for [`rpcrdma_fabric::interface::PortSends::post_formed`].
#[inline]
pub(crate) const fn formed(form: Form, pairs: &Pairs) -> Formed {
    Formed {
        form: form.number(),
        count: form.pairs(),
        words: *pairs,
    }
}

/// The message that came by its form, with `rest` behind its headers. `None` if it is none that [`form::fold`] returns: the
/// general decoders say why.
// Always, and with the form apart: it is known where this is called.
#[inline(always)]
pub(crate) fn of_arrival<'m>(form: Form, formed: &Formed, rest: &'m [u8]) -> Option<Folded<'m>> {
    let (credential, payload) = match form {
        Form::Call2 | Form::Call1 => CallWords::of(&formed.words).split(rest)?,
        Form::Reply2 | Form::Reply1 => (&[][..], rest),
    };
    Some(Folded {
        form,
        pairs: formed.words,
        credential,
        payload,
    })
}
