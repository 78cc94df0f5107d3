//! The XDR of version 2 and of the extension RTR in `docs/extension`: it is XDR (RFC 4506 section 6), it names nothing
//! that it does not define, its numbers are those of the code, and messages of the code are what it describes.

use std::collections::BTreeMap;
use std::path::Path;

use rpcrdma_protocol::chunks::Segment;
use rpcrdma_protocol::constants as number;
use rpcrdma_protocol::v2::rtr::{
    EncodeItems, Location, MessageItem, MessageItemRepr, OutOfRange, Problem, ReportError,
    ResponseItem, ResponseItemRepr, ResponseLocation, ResponseSet, ResponseSetRepr, StreamRange,
    TransmissionId, TransmitContinue, TransmitRequest, TransmitResponse,
};
use rpcrdma_protocol::v2::{self, Direction, Prefix};
use rpcrdma_testkit::CheckWords;

/// A member of a struct or arm of a union.
#[derive(Clone, Debug, PartialEq)]
enum Declaration {
    Void,
    One(String),
    Optional(String),
    List(String),
}

#[derive(Debug)]
enum Type {
    Alias(Declaration),
    Enum(Vec<i64>),
    Struct(Vec<Declaration>),
    Union {
        discriminant: String,
        arms: BTreeMap<i64, Declaration>,
        default: Option<Declaration>,
    },
}

#[derive(Default)]
struct Specification {
    constants: BTreeMap<String, i64>,
    types: BTreeMap<String, Type>,
}

/// Words and signs of a file, without its comments.
fn tokens(text: &str) -> Vec<String> {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").expect("the comment ends").1;
    }
    plain.push_str(rest);
    let mut tokens = Vec::new();
    let mut word = String::new();
    for character in plain.chars() {
        if character.is_alphanumeric() || character == '_' {
            word.push(character);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if !character.is_whitespace() {
            assert!("{}()<>=;:,*".contains(character), "a stray {character:?}");
            tokens.push(character.to_string());
        }
    }
    tokens
}

struct Parser {
    tokens: std::vec::IntoIter<String>,
    specification: Specification,
}

impl Parser {
    fn next(&mut self) -> String {
        self.tokens.next().expect("the file goes on")
    }

    fn peek(&self) -> &str {
        self.tokens.as_slice().first().map_or("", String::as_str)
    }

    fn expect(&mut self, sign: &str) {
        let found = self.next();
        assert_eq!(found, sign, "before {:?}", self.tokens.as_slice().first());
    }

    fn identifier(&mut self) -> String {
        let found = self.next();
        assert!(
            found.starts_with(|first: char| first.is_alphabetic()),
            "{found} is no name"
        );
        found
    }

    fn value(&mut self) -> i64 {
        let text = self.next();
        if let Some(digits) = text.strip_prefix("0x") {
            return i64::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
        text.parse()
            .unwrap_or_else(|_| *self.specification.constants.get(&text).expect("a constant"))
    }

    /// A type name, which is defined before it is used; the list types of -00 name themselves.
    fn type_name(&mut self, own: &str) -> String {
        let mut name = self.identifier();
        if name == "unsigned" {
            name = format!("unsigned {}", self.identifier());
        }
        let is_known = matches!(&name[..], "unsigned int" | "unsigned hyper" | "opaque")
            || name == own
            || self.specification.types.contains_key(&name);
        assert!(is_known, "{name} is not defined");
        name
    }

    /// A declaration, and the name that it declares.
    fn declaration(&mut self, own: &str) -> (Declaration, String) {
        if self.peek() == "void" {
            self.next();
            self.expect(";");
            return (Declaration::Void, String::new());
        }
        let of = self.type_name(own);
        let is_optional = self.peek() == "*";
        if is_optional {
            self.next();
        }
        let name = self.identifier();
        let is_list = self.peek() == "<";
        if is_list {
            self.next();
            self.expect(">");
        }
        self.expect(";");
        let declaration = match (is_optional, is_list) {
            (true, false) => Declaration::Optional(of),
            (false, true) => Declaration::List(of),
            (false, false) => Declaration::One(of),
            (true, true) => panic!("{name} is both optional and a list"),
        };
        (declaration, name)
    }

    fn define(&mut self, name: String, definition: Type) {
        let before = self.specification.types.insert(name.clone(), definition);
        assert!(before.is_none(), "{name} is defined twice");
    }

    fn constant(&mut self, name: String, value: i64) {
        let before = self.specification.constants.insert(name.clone(), value);
        assert!(before.is_none(), "{name} is defined twice");
    }

    fn parse(mut self) -> Specification {
        while self.tokens.len() > 0 {
            match &self.next()[..] {
                "const" => {
                    let name = self.identifier();
                    self.expect("=");
                    let value = self.value();
                    self.expect(";");
                    self.constant(name, value);
                }
                "typedef" => {
                    let (declaration, name) = self.declaration("");
                    self.define(name, Type::Alias(declaration));
                }
                "enum" => self.enumeration(),
                "struct" => self.structure(),
                "union" => self.union(),
                other => panic!("{other} begins no definition"),
            }
        }
        self.specification
    }

    fn enumeration(&mut self) {
        let name = self.identifier();
        let mut values = Vec::new();
        self.expect("{");
        loop {
            let member = self.identifier();
            self.expect("=");
            let value = self.value();
            self.constant(member, value);
            values.push(value);
            if self.peek() == "}" {
                break;
            }
            self.expect(",");
        }
        self.expect("}");
        self.expect(";");
        self.define(name, Type::Enum(values));
    }

    fn structure(&mut self) {
        let own = self.identifier();
        let mut members = Vec::new();
        let mut names = Vec::new();
        self.expect("{");
        while self.peek() != "}" {
            let (declaration, name) = self.declaration(&own);
            assert!(!names.contains(&name), "{own} has two members {name}");
            names.push(name);
            members.push(declaration);
        }
        self.expect("}");
        self.expect(";");
        self.define(own, Type::Struct(members));
    }

    fn union(&mut self) {
        let own = self.identifier();
        self.expect("switch");
        self.expect("(");
        let discriminant = self.type_name("");
        self.identifier();
        self.expect(")");
        self.expect("{");
        let mut arms = BTreeMap::new();
        let mut names = Vec::new();
        let mut default = None;
        while self.peek() != "}" {
            let mut cases = Vec::new();
            while self.peek() == "case" {
                self.next();
                cases.push(self.value());
                self.expect(":");
            }
            let is_default = cases.is_empty();
            if is_default {
                self.expect("default");
                self.expect(":");
            }
            let (declaration, name) = self.declaration(&own);
            assert!(
                name.is_empty() || !names.contains(&name),
                "{own} has two arms {name}"
            );
            names.push(name);
            if is_default {
                default = Some(declaration);
                continue;
            }
            for case in cases {
                let before = arms.insert(case, declaration.clone());
                assert!(before.is_none(), "{own} has two arms for {case}");
            }
        }
        self.expect("}");
        self.expect(";");
        self.define(
            own,
            Type::Union {
                discriminant,
                arms,
                default,
            },
        );
    }
}

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../docs/extension")
        .join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn specification() -> Specification {
    let text = [file("rpcrdma-v2.x"), file("rtr.x")].concat();
    Parser {
        tokens: tokens(&text).into_iter(),
        specification: Specification::default(),
    }
    .parse()
}

impl Specification {
    /// The octets that a value of this type takes at the start of `octets`; `None` when there is none.
    fn length(&self, of: &str, octets: &[u8]) -> Option<usize> {
        let word = |at: usize| {
            let octets = octets.get(at..at + 4)?.try_into().ok()?;
            Some(u32::from_be_bytes(octets))
        };
        match of {
            "unsigned int" => return word(0).map(|_| 4),
            "unsigned hyper" => return word(4).map(|_| 8),
            "opaque" => return Some(0),
            _ => {}
        }
        match &self.types[of] {
            Type::Alias(declaration) => self.declared(declaration, octets),
            Type::Enum(values) => values.contains(&i64::from(word(0)?)).then_some(4),
            Type::Struct(members) => {
                let mut at = 0;
                for member in members {
                    at += self.declared(member, octets.get(at..)?)?;
                }
                Some(at)
            }
            Type::Union {
                discriminant,
                arms,
                default,
            } => {
                let at = self.length(discriminant, octets)?;
                let arm = arms.get(&i64::from(word(0)?)).or(default.as_ref())?;
                Some(at + self.declared(arm, octets.get(at..)?)?)
            }
        }
    }

    fn declared(&self, declaration: &Declaration, octets: &[u8]) -> Option<usize> {
        let word =
            || -> Option<u32> { Some(u32::from_be_bytes(octets.get(..4)?.try_into().ok()?)) };
        match declaration {
            Declaration::Void => Some(0),
            Declaration::One(of) => self.length(of, octets),
            Declaration::Optional(of) => match word()? {
                0 => Some(4),
                1 => Some(4 + self.length(of, octets.get(4..)?)?),
                _ => None,
            },
            Declaration::List(of) if of == "opaque" => {
                let length = usize::try_from(word()?).ok()?.next_multiple_of(4);
                (octets.len() >= 4 + length).then_some(4 + length)
            }
            Declaration::List(of) => {
                let mut at = 4;
                for _ in 0..word()? {
                    at += self.length(of, octets.get(at..)?)?;
                }
                Some(at)
            }
        }
    }
}

#[test]
fn numbers_are_those_of_the_code() {
    let constants = specification().constants;
    #[rustfmt::skip]
    let expected = [
        ("RPCRDMA2_F_RESPONSE", number::RDMA2_F_RESPONSE),
        ("RPCRDMA2_F_MORE", number::RDMA2_F_MORE),
        ("RDMA2_MSG", number::RDMA2_MSG),
        ("RDMA2_NOMSG", number::RDMA2_NOMSG),
        ("RDMA2_ERROR", number::RDMA2_ERROR),
        ("RDMA2_CONNPROP", number::RDMA2_CONNPROP),
        ("RDMA2_PROPID_SBSIZ", number::RDMA2_PROPID_SBSIZ),
        ("RDMA2_PROPID_RBSIZ", number::RDMA2_PROPID_RBSIZ),
        ("RDMA2_PROPID_RSSIZ", number::RDMA2_PROPID_RSSIZ),
        ("RDMA2_PROPID_RCSIZ", number::RDMA2_PROPID_RCSIZ),
        ("RDMA2_PROPID_BRS", number::RDMA2_PROPID_BRS),
        ("RDMA2_PROPID_HOSTAUTH", number::RDMA2_PROPID_HOSTAUTH),
        ("RDMA2_RVREQSUP_NONE", number::RDMA2_RVREQSUP_NONE),
        ("RDMA2_RVREQSUP_INLINE", number::RDMA2_RVREQSUP_INLINE),
        ("RDMA2_RVREQSUP_GENL", number::RDMA2_RVREQSUP_GENL),
        ("RDMA2_ERR_VERS", number::RDMA2_ERR_VERS),
        ("RDMA2_ERR_BAD_XDR", number::RDMA2_ERR_BAD_XDR),
        ("RDMA2_ERR_INVAL_HTYPE", number::RDMA2_ERR_INVAL_HTYPE),
        ("RDMA2_ERR_INVAL_FLAG", number::RDMA2_ERR_INVAL_FLAG),
        ("RDMA2_ERR_READ_CHUNKS", number::RDMA2_ERR_READ_CHUNKS),
        ("RDMA2_ERR_WRITE_CHUNKS", number::RDMA2_ERR_WRITE_CHUNKS),
        ("RDMA2_ERR_SEGMENTS", number::RDMA2_ERR_SEGMENTS),
        ("RDMA2_ERR_WRITE_RESOURCE", number::RDMA2_ERR_WRITE_RESOURCE),
        ("RDMA2_ERR_REPLY_RESOURCE", number::RDMA2_ERR_REPLY_RESOURCE),
        ("RDMA2_ERR_SYSTEM", number::RDMA2_ERR_SYSTEM),
        ("CALL", number::RPC_CALL),
        ("REPLY", number::RPC_REPLY),
        ("ROPT_XMTREQ", number::RTR_TRANSMIT_REQUEST),
        ("ROPT_XMTRESP", number::RTR_TRANSMIT_RESPONSE),
        ("ROPT_XMTCONT", number::RTR_TRANSMIT_CONTINUE),
        ("ROPT_REPTERR", number::RTR_REPORT_ERROR),
        ("XPROP_RTRSUPP", number::RTR_PROPID_SUPPORT),
        ("XPROP_RBSTRUCT", number::RTR_PROPID_RECEIVE_BUFFER_STRUCTURE),
        ("XPROP_REQRXLIM", number::RTR_PROPID_REQUEST_RECEIVE_LIMIT),
        ("XPROP_RESPSXLIM", number::RTR_PROPID_RESPONSE_SEND_LIMIT),
        ("RTRS_XREQ", number::RTR_SUPPORT_REQUEST),
        ("RTRS_XRESP", number::RTR_SUPPORT_RESPONSE),
        ("RTRS_XCONT", number::RTR_SUPPORT_CONTINUE),
        ("XMRSFLAG_PLT", number::RTR_SEGMENT_FLAG_TARGETABLE),
        ("XMPTYPE_EXRW", number::RTR_TYPE_EXPLICIT),
        ("XMPTYPE_TBSN", number::RTR_TYPE_PLACED),
        ("XMPTYPE_CHOICE", number::RTR_TYPE_CHOICE),
        ("XMPTYPE_BYSIZE", number::RTR_TYPE_BY_SIZE),
        ("XMPTYPE_TOOSHORT", number::RTR_TYPE_TOO_SHORT),
        ("XMPTYPE_NOITEM", number::RTR_TYPE_NO_ITEM),
        ("OPTRERR_BADHMT", number::RTR_ERR_BAD_HEADER_TYPE),
        ("OPTRERR_BADOMT", number::RTR_ERR_BAD_OPTIONAL_TYPE),
        ("OPTRERR_BADCONT", number::RTR_ERR_BAD_CONTINUATION),
        ("OPTRERR_BADSEQ", number::RTR_ERR_BAD_SEQUENCE),
        ("OPTRERR_BADXID", number::RTR_ERR_BAD_XID),
        ("OPTRERR_BADOFF", number::RTR_ERR_BAD_OFFSET),
        ("OPTRERR_BADTBSN", number::RTR_ERR_BAD_SEGMENT_NUMBER),
        ("OPTRERR_BADPL", number::RTR_ERR_BAD_STREAM_LENGTH),
    ];
    let expected: BTreeMap<String, i64> = expected
        .into_iter()
        .map(|(name, value)| (name.to_owned(), i64::from(value)))
        .collect();
    assert_eq!(constants, expected);
}

/// What the code writes is, to the last octet, a value of the type that the document gives it.
#[test]
fn messages_are_what_the_document_describes() {
    const SEGMENT: Segment = Segment {
        handle: 1,
        length_bytes: 2,
        offset: 3,
    };
    fn item<'a>(location: Location<&'a [Segment], &'a [u32]>) -> MessageItemRepr<'a> {
        MessageItem {
            displacement: 8,
            length_bytes: 5,
            location,
        }
    }
    fn direction(location: ResponseLocation<&[Segment]>) -> ResponseItemRepr<'_> {
        ResponseItem {
            minimum_bytes: 7,
            location,
        }
    }
    let specification = specification();
    let placed = Location::Placed {
        offset_bytes: 1,
        numbers: &[0, 1][..],
    };
    let items: [MessageItemRepr<'_>; 2] = [item(Location::Explicit(&[SEGMENT])), item(placed)];
    let results = [
        item(Location::TooShort),
        item(Location::NoItem),
        items[0],
        items[1],
    ];
    let directions: [ResponseItemRepr<'_>; 4] = [
        direction(ResponseLocation::Explicit(&[SEGMENT])),
        direction(ResponseLocation::Choice(&[SEGMENT, SEGMENT])),
        direction(ResponseLocation::BySize {
            explicit_from_bytes: 9,
            segments: &[SEGMENT],
        }),
        direction(ResponseLocation::Placed),
    ];
    let sets: [ResponseSetRepr<'_>; 1] = [ResponseSet {
        range: StreamRange { begin: 0, end: 40 },
        items: &directions,
    }];
    let request = TransmitRequest {
        items: &items[..],
        directions: &sets[..],
        transmissions: 1,
        response_transmissions_max: 1,
        stream_bytes: 0,
    };
    let response = TransmitResponse {
        items: &results[..],
        transmissions: 1,
        stream_bytes: 0,
    };
    let next = TransmitContinue {
        sequence: 1,
        stream_bytes: 0,
    };
    let id = TransmissionId {
        xid: 1,
        direction: Direction::Reply,
        sequence: 2,
    };
    let range = OutOfRange {
        value: 1,
        min: 2,
        max: 3,
    };
    let report = |lead, problem| ReportError {
        bad: id,
        lead,
        problem,
    };
    assert!(
        (&items[..])
            .encode(&mut rpcrdma_protocol::xdr::Writer::new(&mut []))
            .is_err()
    );
    let prefix = Prefix::default();
    let check = |of: &str, encode: &dyn Fn(&mut [u8]) -> usize| {
        let mut space = [0; 1024];
        let bytes = encode(&mut space);
        let body = &space[20..bytes];
        assert_eq!(
            specification.length("rpcrdma2_hdr_prefix", &space),
            Some(20)
        );
        assert_eq!(specification.length(of, body), Some(body.len()), "{of}");
        assert_eq!(specification.length(of, &body[..body.len() - 4]), None);
    };
    check("optxmt_req", &|space| {
        v2::encode_transmit_request(space, prefix, &request).expect("space")
    });
    check("optxmt_resp", &|space| {
        v2::encode_transmit_response(space, prefix, &response).expect("space")
    });
    check("optxmt_cont", &|space| {
        v2::encode_transmit_continue(space, prefix, next).expect("space")
    });
    for report in [
        report(None, Problem::Continuation),
        report(Some(id), Problem::Offset(range)),
    ] {
        check("optrept_err", &|space| {
            v2::encode_report_error(space, prefix.credit, &report).expect("space")
        });
    }
    let properties = v2::Properties::default().to_properties();
    check("rpcrdma2_connprop", &|space| {
        v2::encode_connprop(space, prefix, &properties).expect("space")
    });
}

/// The drafts ask for their licence on code that is taken out of them.
#[test]
fn the_licence_of_the_drafts_stands_at_the_head() {
    for name in ["rpcrdma-v2.x", "rtr.x"] {
        let text = file(name);
        assert!(text.starts_with("/*\n"), "{name}");
        let head = text.split_once("*/").expect("a comment").0;
        head.check_words(&[
            "IETF Trust and the persons",
            "Redistribution and use in source and binary forms",
            "THIS SOFTWARE IS PROVIDED",
        ]);
    }
}
