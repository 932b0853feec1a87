// Server-sent events, as the HTML standard defines them.

/** One event of a stream. */
export interface ServerEvent {
  readonly name: string;
  readonly data: string;
}

/** Collects pieces of text to events, wherever they are cut. */
export class EventParser {
  #rest = "";
  #afterCr = false;
  #name = "";
  #data: string[] = [];

  /** The events that this piece completes. */
  feed(piece: string): ServerEvent[] {
    let text = this.#afterCr && piece.startsWith("\n") ? piece.slice(1) : piece;
    if (piece.length > 0) {
      this.#afterCr = piece.endsWith("\r");
    }
    text = this.#rest + text;
    const lines = text.split(/\r\n|\r|\n/);
    this.#rest = lines.pop() ?? "";
    return lines.flatMap((line) => this.#line(line) ?? []);
  }

  #line(line: string): ServerEvent | undefined {
    if (line === "") {
      const event = { name: this.#name || "message", data: this.#data.join("\n") };
      const complete = this.#data.length > 0;
      this.#name = "";
      this.#data = [];
      return complete ? event : undefined;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "event") {
      this.#name = value;
    } else if (name === "data") {
      this.#data.push(value);
    }
    // Comments keep the connection open; other fields have no meaning here.
    return undefined;
  }
}
