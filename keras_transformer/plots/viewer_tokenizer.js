// SentencePiece in a page: normalisation, segmentation and the way back to text.
// Kudo and Richardson, 2018, "SentencePiece"; Kudo, 2018, "Subword Regularization"; Sennrich et al., 2016.

const BLANK = "\u2581"; // SentencePiece writes it instead of a space
const NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6; // types of pieces in a model file
const UNKNOWN_PENALTY = 10; // an unknown character scores this much below the worst piece
const UNKNOWN_TEXT = " \u2047 ";

// Returns how many bytes a character of UTF-8 takes that begins with this byte.
const sizeOf = (lead) => (lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4);

function bytesOf(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

// The character map of a model file: a double-array trie from UTF-8 to the places of the replacements after it.
class CharacterMap {
  constructor(bytes) {
    const size = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0, true);
    this.units = new Uint32Array(bytes.slice(4, 4 + size).buffer);
    this.replacements = bytes.subarray(4 + size);
    this.decoder = new TextDecoder();
  }

  // Returns the longest entry that `bytes` continues with at `start`: [its replacement, its length], or null.
  longest(bytes, start) {
    const offset = (unit) => (unit >>> 10) << ((unit & 512) >>> 6);
    let node = offset(this.units[0]), found = -1, length = 0;
    for (let i = start; i < bytes.length; i++) {
      node ^= bytes[i];
      const unit = this.units[node];
      if (unit === undefined || (unit & 0x800000ff) >>> 0 !== bytes[i]) break;
      node ^= offset(unit);
      if ((unit >>> 8) & 1) {
        found = this.units[node] & 0x7fffffff;
        length = i + 1 - start;
      }
    }
    if (length === 0) return null;
    const end = this.replacements.indexOf(0, found);
    return [this.decoder.decode(this.replacements.subarray(found, end)), length];
  }
}

// Decodes UTF-8. Each byte that is not part of a character becomes U+FFFD.
function textOf(bytes) {
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let text = "";
  for (let start = 0; start < bytes.length;) {
    let size = sizeOf(bytes[start]), character = "\ufffd";
    try {
      character = decoder.decode(bytes.subarray(start, start + size));
    } catch {
      size = 1;
    }
    text += character;
    start += size;
  }
  return text;
}

class SentencePiece {
  // description: `pieces` ([text, score, type] by id), `algorithm`, `unk_id`, `byte_fallback` and `normalizer`.
  constructor(description) {
    Object.assign(this, description);
    this.vocabSize = this.pieces.length;
    this.ids = new Map();
    this.byteIds = new Map();
    this.longestPiece = 1;
    let worst = 0, any = false;
    this.pieces.forEach(([text, score, type], id) => {
      if (type === BYTE) this.byteIds.set(parseInt(text.slice(1, -1), 16), id);
      if (type !== NORMAL) return;
      this.ids.set(text, id);
      this.longestPiece = Math.max(this.longestPiece, [...text].length);
      worst = any ? Math.min(worst, score) : score;
      any = true;
    });
    this.unknownScore = Math.fround(worst - UNKNOWN_PENALTY);
    // The model's own map: `normalize("NFKC")` of JavaScript gives other characters.
    const map = this.normalizer.character_map;
    this.characterMap = map ? new CharacterMap(bytesOf(map)) : null;
  }

  text(id) {
    return id < this.vocabSize ? this.pieces[id][0] : this.pieces[this.unk_id][0];
  }

  normalized(text) {
    const { add_dummy_prefix: prefix, remove_extra_whitespaces: trims, escape_whitespaces: escapes } = this.normalizer;
    const parts = this.replacedParts(text);
    let first = 0;
    while (trims && first < parts.length && parts[first] === " ") first++;
    if (first === parts.length) return "";
    const blank = escapes ? BLANK : " ";
    let result = prefix ? blank : "", afterSpace = trims;
    for (let part of parts.slice(first)) {
      if (afterSpace) part = part.replace(/^ +/, "");
      if (part) {
        result += escapes ? part.replaceAll(" ", BLANK) : part;
        afterSpace = part.endsWith(" ");
      }
      if (!trims) afterSpace = false;
    }
    while (trims && result.endsWith(blank)) result = result.slice(0, -1);
    return result;
  }

  // Splits a text into the longest entries of the character map, and replaces them; other characters stay.
  replacedParts(text) {
    if (this.characterMap === null) return [...text.toWellFormed?.() ?? text];
    const bytes = new TextEncoder().encode(text), decoder = new TextDecoder("utf-8", { ignoreBOM: true }), parts = [];
    for (let start = 0; start < bytes.length;) {
      const entry = this.characterMap.longest(bytes, start);
      if (entry !== null) {
        parts.push(entry[0]);
        start += entry[1];
        continue;
      }
      const size = sizeOf(bytes[start]);
      parts.push(decoder.decode(bytes.subarray(start, start + size)));
      start += size;
    }
    return parts;
  }

  encode(text) {
    const characters = [...this.normalized(text)];
    const found = this.algorithm === "bpe" ? this.merged(characters) : this.likeliest(characters);
    const ids = [];
    let unknownBefore = false;
    for (const [piece, id] of found) {
      const unknown = id === this.unk_id;
      if (unknown && this.byte_fallback) {
        for (const byte of new TextEncoder().encode(piece)) ids.push(this.byteIds.get(byte));
      } else if (!(unknown && unknownBefore)) ids.push(id); // neighbouring unknown characters are one unknown piece
      unknownBefore = unknown;
    }
    return ids;
  }

  // Finds the likeliest segmentation of a unigram model (Kudo, 2018, section 3.2), by Viterbi's algorithm.
  likeliest(characters) {
    const n = characters.length, best = new Float32Array(n + 1), from = new Int32Array(n + 1).fill(-1);
    const ids = new Int32Array(n + 1);
    const offer = (start, end, id, score) => {
      score = Math.fround(score + best[start]);
      if (from[end] === -1 || score > best[end]) [from[end], ids[end], best[end]] = [start, id, score];
    };
    for (let start = 0; start < n; start++) {
      let piece = "", single = false;
      for (let end = start + 1; end <= Math.min(n, start + this.longestPiece); end++) {
        piece += characters[end - 1];
        const id = this.ids.get(piece);
        if (id === undefined) continue;
        offer(start, end, id, this.pieces[id][1]);
        single ||= end === start + 1;
      }
      if (!single) offer(start, start + 1, this.unk_id, this.unknownScore);
    }
    const found = [];
    for (let end = n; end > 0; end = from[end]) found.push([characters.slice(from[end], end).join(""), ids[end]]);
    return found.reverse();
  }

  // Merges the neighbours whose union has the highest score, the first of equals, until no union is a piece.
  merged(symbols) {
    symbols = [...symbols];
    for (;;) {
      let place = -1, highest = -Infinity;
      for (let i = 0; i + 1 < symbols.length; i++) {
        const id = this.ids.get(symbols[i] + symbols[i + 1]);
        if (id !== undefined && this.pieces[id][1] > highest) [place, highest] = [i, this.pieces[id][1]];
      }
      if (place === -1) return symbols.map((symbol) => [symbol, this.ids.get(symbol) ?? this.unk_id]);
      symbols.splice(place, 2, symbols[place] + symbols[place + 1]);
    }
  }

  decode(ids) {
    const trims = this.normalizer.remove_extra_whitespaces;
    const strips = this.normalizer.add_dummy_prefix || trims;
    let text = "", bytes = [], atStart = true;
    const flush = () => {
      text += textOf(new Uint8Array(bytes));
      bytes = [];
    };
    for (const id of ids) {
      const [piece, , type] = id < this.vocabSize ? this.pieces[id] : this.pieces[this.unk_id];
      if (type === BYTE) {
        bytes.push(parseInt(piece.slice(1, -1), 16));
        atStart = false;
        continue;
      }
      flush();
      if (type === CONTROL) continue;
      let part = type === UNKNOWN ? UNKNOWN_TEXT : piece, stripped = false;
      if (atStart && strips && part.startsWith(BLANK)) {
        part = part.slice(1);
        stripped = !trims; // where extra spaces are removed, so are those of the pieces that follow
      }
      text += part.replaceAll(BLANK, " ");
      if (part || stripped) atStart = false;
    }
    flush();
    return text;
  }
}
