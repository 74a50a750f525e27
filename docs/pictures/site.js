// A page that was opened as a file cannot search; see site.css.
if (location.protocol === "file:") document.documentElement.classList.add("from-file");
