// Browsers refuse web workers to pages opened from a file. There, run the worker's script in a hidden frame instead, so that
// the search of the documentation works without a server and without a network.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      const inside = frame.contentWindow
      const load = (source) => new Promise((done, failed) => {
        const script = inside.document.createElement("script")
        script.src = new URL(source, location.href).href
        script.onload = done
        script.onerror = failed
        inside.document.body.appendChild(script)
      })
      inside.importScripts = (...sources) => sources.reduce((before, source) => before.then(() => load(source)), Promise.resolve())
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.send = (data) => inside.dispatchEvent(new inside.MessageEvent("message", { data }))
      this.ready = load(address)
      this.frame = frame
    }

    postMessage(data) {
      this.ready.then(() => this.send(data))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
