-- Wireshark dissector for RPC-over-RDMA version 2 (draft-ietf-nfsv4-rpcrdma-version-two-00) with the round-trip
-- reduction (draft-dnoveck-nfsv4-rpcrdma-rtrext-03). README.md beside this file says how to load it. Version 1 is left
-- to Wireshark's own dissector.
--
-- Names of fields are those of docs/extension/*.x, where the XDR of both documents stands.

local proto = Proto("rpcrdma2", "RPC-over-RDMA version 2")

-- --- Numbers -------------------------------------------------------------------------------------------

local MSG, NOMSG, ERROR, CONNPROP = 0, 1, 4, 5
local XMTREQ, XMTRESP, XMTCONT, REPTERR = 0x52545201, 0x52545202, 0x52545203, 0x52545204
local htypes = {
    [MSG] = "RDMA2_MSG", [NOMSG] = "RDMA2_NOMSG", [ERROR] = "RDMA2_ERROR", [CONNPROP] = "RDMA2_CONNPROP",
    [XMTREQ] = "ROPT_XMTREQ", [XMTRESP] = "ROPT_XMTRESP", [XMTCONT] = "ROPT_XMTCONT", [REPTERR] = "ROPT_REPTERR",
}
local F_RESPONSE, F_MORE = 1, 2

local ERR_VERS, ERR_WRITE_RESOURCE = 1, 8
local errors = {
    "RDMA2_ERR_VERS", "RDMA2_ERR_BAD_XDR", "RDMA2_ERR_INVAL_HTYPE", "RDMA2_ERR_INVAL_FLAG", "RDMA2_ERR_READ_CHUNKS",
    "RDMA2_ERR_WRITE_CHUNKS", "RDMA2_ERR_SEGMENTS", "RDMA2_ERR_WRITE_RESOURCE", "RDMA2_ERR_REPLY_RESOURCE",
    "RDMA2_ERR_SYSTEM",
}

local PROP_HOSTAUTH, PROP_RBSTRUCT = 6, 0x52545204
local properties = {
    "RDMA2_PROPID_SBSIZ", "RDMA2_PROPID_RBSIZ", "RDMA2_PROPID_RSSIZ", "RDMA2_PROPID_RCSIZ", "RDMA2_PROPID_BRS",
    "RDMA2_PROPID_HOSTAUTH",
    [0x52545203] = "XPROP_RTRSUPP", [PROP_RBSTRUCT] = "XPROP_RBSTRUCT", [0x52545205] = "XPROP_REQRXLIM",
    [0x52545206] = "XPROP_RESPSXLIM",
}

local EXRW, TBSN, CHOICE, BYSIZE, TOOSHORT, NOITEM = 1, 2, 3, 4, 5, 6
local placements = {
    "XMPTYPE_EXRW", "XMPTYPE_TBSN", "XMPTYPE_CHOICE", "XMPTYPE_BYSIZE", "XMPTYPE_TOOSHORT", "XMPTYPE_NOITEM",
}

local reported = {
    "OPTRERR_BADHMT", "OPTRERR_BADOMT", "OPTRERR_BADCONT", "OPTRERR_BADSEQ", "OPTRERR_BADXID", "OPTRERR_BADOFF",
    "OPTRERR_BADTBSN", "OPTRERR_BADPL",
}
-- What each reports: two numbers that differ, nothing, or a number out of a range.
local mismatches = { [1] = true, [2] = true, [4] = true, [5] = true }
local ranges = { [6] = true, [7] = true, [8] = true }

local directions = { [0] = "CALL", [1] = "REPLY" }

-- --- Fields --------------------------------------------------------------------------------------------

local f = {}
local function field(make, name, text, ...)
    f[name] = make("rpcrdma2." .. name, text, ...)
end
local function u32(name, text, ...) field(ProtoField.uint32, name, text, ...) end

u32("xid", "XID", base.HEX)
u32("vers", "Version")
u32("credit", "Credit word", base.HEX)
u32("granted", "Credits newly granted", base.DEC, nil, 0x0000ffff)
u32("maximum", "Credits outstanding at most", base.DEC, nil, 0xffff0000)
u32("htype", "Header type", base.HEX, htypes)
u32("flags", "Flags", base.HEX)
field(ProtoField.bool, "flags.response", "F_RESPONSE", 32, nil, F_RESPONSE)
field(ProtoField.bool, "flags.more", "F_MORE", 32, nil, F_MORE)
u32("inv_handle", "Handle that may be invalidated", base.HEX)
u32("position", "Position")
u32("handle", "Handle", base.HEX)
u32("length", "Length")
field(ProtoField.uint64, "offset", "Offset", base.HEX)
u32("chunks", "Chunk follows")
u32("segments", "Segments")
u32("err", "Error", base.DEC, errors)
u32("vers_low", "Lowest version")
u32("vers_high", "Highest version")
u32("err_max", "Most that is taken")
u32("chunk_index", "Write chunk")
u32("length_needed", "Length needed")
u32("properties", "Properties")
u32("propid", "Property", base.HEX, properties)
u32("proplen", "Length of its value")
u32("propval", "Value")
u32("hostauth_length", "Length of the message")
field(ProtoField.bytes, "propdata", "Value")
u32("xmrbuf_length", "Receive buffer")
u32("xmrbuf_groups", "Groups of segments")
u32("xmrgrp_count", "Segments alike")
u32("xmrseg_length", "Length of each")
u32("xmrseg_align", "Alignment")
u32("xmrseg_flags", "Flags", base.HEX)
field(ProtoField.bool, "xmrseg_plt", "Placement target", 32, nil, 1)
u32("items", "Items of bulk data")
u32("xmdmi_disp", "Displacement")
u32("xmdmi_length", "Length")
u32("xmdl_type", "Location", base.DEC, placements)
u32("xmdl_offset", "Offset in the first segment")
u32("numbers", "Numbers of segments")
u32("xmdl_bsnum", "Segment number")
u32("sets", "Sets of directions")
u32("xmdrsdr_begin", "From byte")
u32("xmdrsdr_end", "To byte")
u32("directions", "Directions")
u32("xmdrsdi_minlen", "Inline below")
u32("xmdrsdl_type", "Location", base.DEC, placements)
u32("xmdrsdl_dsdov", "Explicit RDMA from")
u32("count", "Transmissions of the group")
u32("rsbuf", "Transmissions that the reply may take")
u32("xnum", "Number in its group")
u32("itype", "Reserved")
u32("pslen", "Length of the payload stream")
u32("xmsi_xid", "XID", base.HEX)
u32("xmsi_dir", "Direction", base.DEC, directions)
u32("xmsi_seq", "Number in its group")
u32("lead", "A transmission led to it")
u32("report", "Reported error", base.DEC, reported)
u32("expect", "Expected")
u32("current", "Found")
u32("value", "Found")
u32("min", "Least")
u32("max", "Most")
field(ProtoField.bytes, "payload", "Payload")
field(ProtoField.bytes, "placed", "Padding and placed bulk data")
u32("rpc_xid", "RPC XID", base.HEX)
u32("rpc_type", "RPC message type", base.DEC, directions)
u32("rpc_program", "RPC program")
u32("rpc_version", "RPC program version")
u32("rpc_procedure", "RPC procedure")
field(ProtoField.framenum, "begins_in", "The Send begins in")
field(ProtoField.string, "malformed", "Malformed")

proto.fields = {}
for _, one in pairs(f) do table.insert(proto.fields, one) end

local malformed = ProtoExpert.new("rpcrdma2.expert.malformed", "Malformed", expert.group.MALFORMED, expert.severity.ERROR)
proto.experts = { malformed }

local opcode_field = Field.new("infiniband.bth.opcode")
local queue_pair_field = Field.new("infiniband.bth.destqp")

-- --- Reading -------------------------------------------------------------------------------------------

-- A cursor over the message. What is wrong is raised as a table, which `dissect` shows.
local Cursor = {}
Cursor.__index = Cursor

local function wrong(at, text) error({ at = at, text = text }, 0) end

function Cursor.new(tvb, at) return setmetatable({ tvb = tvb, at = at }, Cursor) end
function Cursor:left() return self.tvb:len() - self.at end
function Cursor:take(bytes)
    if self:left() < bytes then wrong(self.at, "the message ends here, and " .. bytes .. " bytes more are needed") end
    local range = self.tvb(self.at, bytes)
    self.at = self.at + bytes
    return range
end
-- The next word as a field; with a function for trees below it.
function Cursor:word(tree, name)
    local range = self:take(4)
    return range:uint(), tree:add(f[name], range), range
end
-- A word that says whether something optional is there.
function Cursor:follows(tree, name)
    local at = self.at
    local value = self:word(tree, name)
    if value > 1 then wrong(at, "neither 0 nor 1 says whether more follows") end
    return value == 1
end
-- A count of things that take so many bytes at least.
function Cursor:count(tree, name, least)
    local at = self.at
    local count = self:word(tree, name)
    if count * least > self:left() then wrong(at, "the message is too short for so many") end
    return count
end

local function subtree(tree, cursor, text) return tree:add(proto, cursor.tvb(cursor.at, 0), text) end
-- Sets what a tree is of, once that is known.
local function close(tree, cursor, start) tree:set_len(cursor.at - start) end

local function segment(cursor, tree, text)
    local start, node = cursor.at, subtree(tree, cursor, text or "Segment")
    cursor:word(node, "handle")
    cursor:word(node, "length")
    node:add(f.offset, cursor:take(8))
    close(node, cursor, start)
end

local function segments(cursor, tree)
    for _ = 1, cursor:count(tree, "segments", 16) do segment(cursor, tree) end
end

-- Optional entries that follow one another, or one optional entry. Returns whether there is none.
local function optional(cursor, tree, text, is_list, entry)
    local start, node, none = cursor.at, subtree(tree, cursor, text), true
    while cursor:follows(node, "chunks") do
        none = false
        entry(cursor, node)
        if not is_list then break end
    end
    close(node, cursor, start)
    return none
end

local function read_segment(cursor, tree)
    cursor:word(tree, "position")
    segment(cursor, tree, "Read segment")
end

-- Returns whether all three are empty.
local function chunk_lists(cursor, tree)
    cursor:word(tree, "inv_handle")
    local no_reads = optional(cursor, tree, "Read list", true, read_segment)
    local no_writes = optional(cursor, tree, "Write list", true, segments)
    local no_reply = optional(cursor, tree, "Reply chunk", false, segments)
    return no_reads and no_writes and no_reply
end

local function buffer_structure(cursor, tree)
    cursor:word(tree, "xmrbuf_length")
    for _ = 1, cursor:count(tree, "xmrbuf_groups", 16) do
        cursor:word(tree, "xmrgrp_count")
        cursor:word(tree, "xmrseg_length")
        cursor:word(tree, "xmrseg_align")
        local _, _, range = cursor:word(tree, "xmrseg_flags")
        tree:add(f.xmrseg_plt, range)
    end
end

local function property(cursor, tree)
    local start, node = cursor.at, subtree(tree, cursor, "Property")
    local id = cursor:word(node, "propid")
    local length = cursor:count(node, "proplen", 1)
    local value_at = cursor.at
    local value = cursor:take(length)
    cursor:take(-length % 4)
    close(node, cursor, start)
    node:append_text(": " .. (properties[id] or "unknown"))
    -- No value stands for the default.
    if length == 0 then return end
    if id == PROP_RBSTRUCT then
        local inner = Cursor.new(value:tvb(), 0)
        buffer_structure(inner, node)
        if inner:left() > 0 then wrong(value_at, "bytes are left behind the structure") end
    elseif id == PROP_HOSTAUTH then
        local inner = Cursor.new(value:tvb(), 0)
        local bytes = inner:count(node, "hostauth_length", 1)
        if bytes > 0 then node:add(f.propdata, inner:take(bytes)) end
        if inner:left() ~= -bytes % 4 then wrong(value_at, "the value is not as long as it says") end
    elseif properties[id] then
        if length ~= 4 then wrong(value_at, "the value of this property is a word") end
        node:add(f.propval, value)
        node:append_text(" " .. value:uint())
    else
        node:add(f.propdata, value)
    end
end

local function property_set(cursor, tree)
    for _ = 1, cursor:count(tree, "properties", 8) do property(cursor, tree) end
    if cursor:left() > 0 then wrong(cursor.at, "bytes are left behind the properties") end
end

local function transport_error(cursor, tree)
    local code = cursor:word(tree, "err")
    if code == ERR_VERS then
        cursor:word(tree, "vers_low")
        cursor:word(tree, "vers_high")
    elseif code >= 5 and code <= 7 then
        cursor:word(tree, "err_max")
    elseif code == ERR_WRITE_RESOURCE then
        cursor:word(tree, "chunk_index")
        cursor:word(tree, "length_needed")
    elseif code == 9 then
        cursor:word(tree, "length_needed")
    end
    return errors[code] or ("error " .. code)
end

-- Where an item of bulk data is: the arms that a message may have.
local function item_location(cursor, tree)
    local at = cursor.at
    local kind = cursor:word(tree, "xmdl_type")
    if kind == EXRW then
        segments(cursor, tree)
    elseif kind == TBSN then
        cursor:word(tree, "xmdl_offset")
        for _ = 1, cursor:count(tree, "numbers", 4) do cursor:word(tree, "xmdl_bsnum") end
    elseif kind ~= TOOSHORT and kind ~= NOITEM then
        wrong(at, "an item cannot be placed so")
    end
end

local function items(cursor, tree)
    for _ = 1, cursor:count(tree, "items", 12) do
        local start, node = cursor.at, subtree(tree, cursor, "Item")
        cursor:word(node, "xmdmi_disp")
        cursor:word(node, "xmdmi_length")
        item_location(cursor, node)
        close(node, cursor, start)
    end
end

local function direction(cursor, tree)
    local start, node = cursor.at, subtree(tree, cursor, "Direction")
    cursor:word(node, "xmdrsdi_minlen")
    local at = cursor.at
    local kind = cursor:word(node, "xmdrsdl_type")
    if kind == EXRW or kind == CHOICE then
        segments(cursor, node)
    elseif kind == BYSIZE then
        cursor:word(node, "xmdrsdl_dsdov")
        segments(cursor, node)
    elseif kind ~= TBSN then
        wrong(at, "a reply cannot be directed so")
    end
    close(node, cursor, start)
end

local function direction_sets(cursor, tree)
    for _ = 1, cursor:count(tree, "sets", 12) do
        local start, node = cursor.at, subtree(tree, cursor, "Directions for a range of the call")
        cursor:word(node, "xmdrsdr_begin")
        cursor:word(node, "xmdrsdr_end")
        for _ = 1, cursor:count(node, "directions", 8) do direction(cursor, node) end
        close(node, cursor, start)
    end
end

local function transmission_id(cursor, tree, text)
    local start, node = cursor.at, subtree(tree, cursor, text)
    cursor:word(node, "xmsi_xid")
    local at = cursor.at
    if cursor:word(node, "xmsi_dir") > 1 then wrong(at, "the direction is neither call nor reply") end
    cursor:word(node, "xmsi_seq")
    close(node, cursor, start)
end

local function report(cursor, tree)
    transmission_id(cursor, tree, "Found on")
    if cursor:follows(tree, "lead") then transmission_id(cursor, tree, "Led by") end
    local at = cursor.at
    local code = cursor:word(tree, "report")
    if not reported[code] then wrong(at, "there is no such error") end
    if mismatches[code] then
        cursor:word(tree, "expect")
        cursor:word(tree, "current")
    elseif ranges[code] then
        cursor:word(tree, "value")
        cursor:word(tree, "min")
        cursor:word(tree, "max")
    end
    return reported[code]
end

-- --- The RPC message -----------------------------------------------------------------------------------

-- The first words of an RPC message, and what they say in brief. Its own dissector gets it where nothing was taken out.
local function rpc_message(cursor, tree, pinfo, bytes, is_whole)
    if bytes == 0 then return "" end
    local payload = cursor:take(bytes)
    tree:add(f.payload, payload)
    if bytes < 8 or payload(4, 4):uint() > 1 then return "" end
    local inner = Cursor.new(payload:tvb(), 0)
    inner:word(tree, "rpc_xid")
    local kind = inner:word(tree, "rpc_type")
    local text = kind == 0 and "call" or "reply"
    if kind == 0 and inner:left() >= 16 then
        inner:take(4)
        local program = inner:word(tree, "rpc_program")
        inner:word(tree, "rpc_version")
        local procedure = inner:word(tree, "rpc_procedure")
        text = text .. " of program " .. program .. " procedure " .. procedure
    end
    if is_whole then
        local rpc = Dissector.get("rpc")
        if rpc then pcall(rpc.call, rpc, payload:tvb(), pinfo, tree) end
    end
    return ", " .. text
end

local function transmission_payload(cursor, tree, pinfo, has_items, is_first)
    local at = cursor.at
    local length = cursor:word(tree, "pslen")
    if length > cursor:left() then wrong(at, "the payload stream is longer than the message") end
    local text = ""
    if is_first then
        text = rpc_message(cursor, tree, pinfo, length, not has_items)
    elseif length > 0 then
        tree:add(f.payload, cursor:take(length))
    end
    if cursor:left() > 0 then tree:add(f.placed, cursor:take(cursor:left())) end
    return text
end

-- --- Messages ------------------------------------------------------------------------------------------

-- A version 1 server that refuses version 2 copies the version, and has no flags. 28 bytes with 1 for an error are
-- taken for that as long as it has sent nothing of version 2, unless they are an error of version 2 of the same length.
local function is_version_1_err_vers(tvb, is_first)
    if not is_first or tvb:len() ~= 28 or tvb(12, 4):uint() ~= ERROR or tvb(16, 4):uint() ~= ERR_VERS then return false end
    local code = tvb(20, 4):uint()
    return not (code == 5 or code == 6 or code == 7 or code == 9)
end

local function body(cursor, tree, pinfo, htype, flags)
    local more = bit.band(flags, F_MORE) ~= 0
    if more and htype ~= MSG and htype ~= CONNPROP then wrong(16, "this header type cannot be continued") end
    if htype == MSG then
        local no_chunks = chunk_lists(cursor, tree)
        if more and not no_chunks then wrong(16, "a message with chunks cannot be continued") end
        if cursor:left() < 4 then wrong(cursor.at, "there is no RPC message") end
        return rpc_message(cursor, tree, pinfo, cursor:left(), no_chunks and not more)
    elseif htype == NOMSG then
        local no_chunks = chunk_lists(cursor, tree)
        return no_chunks and ", credits" or ""
    elseif htype == ERROR then
        return ", " .. transport_error(cursor, tree)
    elseif htype == CONNPROP then
        -- A continued set is read where all of it is, and here is a part.
        if more then
            tree:add(f.payload, cursor:take(math.max(cursor:left(), 4)))
        else
            property_set(cursor, tree)
        end
    elseif htype == XMTREQ then
        local at = cursor.at
        items(cursor, tree)
        local has_items = cursor.at > at + 4
        direction_sets(cursor, tree)
        cursor:word(tree, "count")
        cursor:word(tree, "rsbuf")
        return transmission_payload(cursor, tree, pinfo, has_items, true)
    elseif htype == XMTRESP then
        local at = cursor.at
        items(cursor, tree)
        local has_items = cursor.at > at + 4
        cursor:word(tree, "count")
        return transmission_payload(cursor, tree, pinfo, has_items, true)
    elseif htype == XMTCONT then
        cursor:word(tree, "xnum")
        cursor:word(tree, "itype")
        return transmission_payload(cursor, tree, pinfo, false, false)
    elseif htype == REPTERR then
        return ", " .. report(cursor, tree)
    else
        wrong(12, "there is no such header type")
    end
    return ""
end

local function message(cursor, tree, pinfo, is_first)
    local xid = cursor:word(tree, "xid")
    cursor:word(tree, "vers")
    local _, credit, range = cursor:word(tree, "credit")
    credit:add(f.granted, range)
    credit:add(f.maximum, range)
    local htype = cursor:word(tree, "htype")
    local text = (htypes[htype] or string.format("header type %#x", htype)) .. string.format(" XID 0x%08x", xid)
    pinfo.cols.info = text
    if is_version_1_err_vers(cursor.tvb, is_first) then
        pinfo.cols.info = text .. ", " .. transport_error(cursor, tree)
        return
    end
    local flags, flags_tree, flags_range = cursor:word(tree, "flags")
    flags_tree:add(f["flags.response"], flags_range)
    flags_tree:add(f["flags.more"], flags_range)
    if flags > 3 then wrong(16, "flags are set that version 2 does not have") end
    text = text .. body(cursor, tree, pinfo, htype, flags)
    -- The dissector of RPC has left its own.
    pinfo.cols.protocol = "RPCRDMA2"
    pinfo.cols.info = text
end

local function dissect(tvb, pinfo, tree, is_first)
    pinfo.cols.protocol = "RPCRDMA2"
    local root = tree:add(proto, tvb())
    local ok, failure = pcall(message, Cursor.new(tvb, 0), root, pinfo, is_first)
    if ok then return end
    local at, text = 0, tostring(failure)
    if type(failure) == "table" then at, text = failure.at, failure.text end
    at = math.min(at, tvb:len())
    local mark = root:add(f.malformed, tvb(at, 0), text)
    mark:append_text(" (byte " .. at .. ")")
    mark:add_proto_expert_info(malformed, text)
    pinfo.cols.info:append(" [Malformed: " .. text .. "]")
end

-- --- Which packets are ours ----------------------------------------------------------------------------

-- By direction (sender, receiver, its queue pair): whether it speaks version 2, and the Send that has begun.
local flows = {}
-- By frame: the bytes of the Send that ends there, and where it began.
local sends = {}

function proto.init()
    flows, sends = {}, {}
end

local function looks_ours(tvb, flow)
    if tvb:len() < 20 or tvb(4, 4):uint() ~= 2 then return false end
    return flow.is_ours or htypes[tvb(12, 4):uint()] ~= nil
end

-- Opcodes of Sends on reliable connections.
local FIRST, MIDDLE = 0x00, 0x01
local lasts = { [0x02] = true, [0x03] = true, [0x16] = true }
local onlies = { [0x04] = true, [0x05] = true, [0x17] = true }

local function later_packet(tvb, pinfo, tree, flow, is_last)
    if not pinfo.visited and flow.begun then
        local begun = flow.begun
        begun.bytes:append(tvb:bytes())
        sends[pinfo.number] = { first = begun.first, bytes = is_last and begun.bytes or nil }
        if is_last then flow.begun = nil end
    end
    local send = sends[pinfo.number]
    if not send then return false end
    if send.bytes then
        dissect(send.bytes:tvb("RPC-over-RDMA message"), pinfo, tree)
    else
        pinfo.cols.protocol = "RPCRDMA2"
        pinfo.cols.info = "part of a Send"
    end
    tree:add(proto, tvb(), "Part of a Send"):add(f.begins_in, send.first)
    return true
end

local function ours(tvb, pinfo, tree)
    local opcode, queue_pair = opcode_field(), queue_pair_field()
    if not opcode or not queue_pair then return false end
    opcode = opcode.value
    local key = tostring(pinfo.src) .. " " .. tostring(pinfo.dst) .. " " .. tostring(queue_pair.value)
    local flow = flows[key] or {}
    flows[key] = flow
    if opcode == MIDDLE or lasts[opcode] then return later_packet(tvb, pinfo, tree, flow, lasts[opcode]) end
    if not (opcode == FIRST or onlies[opcode]) or not looks_ours(tvb, flow) then return false end
    if opcode == FIRST then
        if not pinfo.visited then
            flow.is_ours = true
            flow.begun = { first = pinfo.number, bytes = tvb:bytes() }
        end
        pinfo.cols.protocol = "RPCRDMA2"
        pinfo.cols.info = "the beginning of a Send"
        tree:add(proto, tvb(), "The beginning of a Send, which is shown where it ends")
        return true
    end
    if not flow.is_ours then
        flow.is_ours = true
        flow.first = pinfo.number
    end
    dissect(tvb, pinfo, tree, flow.first == pinfo.number)
    return true
end

proto:register_heuristic("infiniband.payload", ours)
