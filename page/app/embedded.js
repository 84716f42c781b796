// What the page embeds: packed bytes and data, in script elements that are not run.

/** Unpack the bytes of an element: gzip in base64. */
export async function bytesOf(id) {
  const text = atob(document.getElementById(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < packed.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** The digits, what is known of missing pixels, and what the network expects. */
export const data = JSON.parse(document.getElementById("data").textContent);
