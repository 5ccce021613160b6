// Browsers start no worker from a page that was opened from disk, so the search would stay silent there.
// For such pages a hidden frame stands in: same messages, same importScripts, in the page's own thread.
if (location.protocol === "file:") {
  window.Worker = class FileWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      frame.title = "Search"
      document.body.appendChild(frame)
      this.inside = frame.contentWindow
      const load = address => new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script")
        script.src = address
        script.onload = resolve
        script.onerror = () => reject(new Error(`${address} cannot be read`))
        this.inside.document.body.appendChild(script)
      })
      this.inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve())
      this.inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {
      this.inside.frameElement.remove()
    }
  }
}
